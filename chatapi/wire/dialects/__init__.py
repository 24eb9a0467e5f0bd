"""Dialects: the wire formats an answer can be written in, and which one a request gets.

A dialect overrides only what differs from OpenAI's. Adding one: README.md of this package has the list of files to touch.
"""

from chatapi.wire.dialects.openai import Answer, OpenAI
from chatapi.wire.dialects.opentoken import OpenToken

DIALECTS: dict[str, type[OpenAI]] = {dialect.name: dialect for dialect in (OpenAI, OpenToken)}


class UnknownDialect(Exception):
    """The client asked for a dialect that there is not; `name` is what it asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def choose(*wishes: str) -> type[OpenAI]:
    """The first wish that is not empty: header, then URL prefix, then the key's default, then the server's.

    Raises `UnknownDialect`.
    """
    name = next((wish for wish in wishes if wish), "")
    if name not in DIALECTS:
        raise UnknownDialect(name)
    return DIALECTS[name]


__all__ = ["DIALECTS", "Answer", "OpenAI", "UnknownDialect", "choose"]
