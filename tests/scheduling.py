"""Distributes tests to pytest-xdist's workers: a pytest plugin, named in pyproject.toml."""

from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling


class FilesAndGroups(LoadGroupScheduling):  # type: ignore[misc]  # it brings no types
    """Gives a worker all tests of an `xdist_group`, or all other tests of a file, at once.

    A module's fixtures are set up in one worker then. Whenever a test ends, the first process looks at all
    that a worker was given: some hundred files and groups instead of ten thousand tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        return group.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndGroups | None:
    """Return the scheduler of `--dist loadgroup`; None for other values of `--dist`."""
    return FilesAndGroups(config, log) if config.getoption("dist") == "loadgroup" else None
