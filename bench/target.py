"""A server that is ready for load, and the kinds of functions that start one."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from bench.children import Child

Roots = dict[str, list[int]]


class Unavailable(Exception):
    """A target cannot run on this machine; the message is one line."""


@dataclass(frozen=True)
class Target:
    """A server that is ready for load."""

    name: str
    base_url: str
    child: Child | None = None
    key: str = "none"
    find_roots: Callable[[], Roots] = field(default=dict)
    """Returns the root processes by name, before each run: the cost of their trees is this server's."""
    verify_ledger: Callable[[], str] | None = None
    """Returns the differences in the books; empty if they are right."""
    headers: Mapping[str, str] = field(default_factory=dict)
    keys_file: Path | None = None
    """The keys that requests use in turn, one a line, instead of `key`."""


Start = Callable[[str, Path], AbstractContextManager[Target]]
"""Takes the upstream's base URL and a folder for files."""
