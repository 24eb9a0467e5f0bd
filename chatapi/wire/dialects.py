"""Dialects: the wire formats an answer can be written in, and which one a request gets.

A dialect overrides only what differs from OpenAI's. Adding one: `chatapi/wire/README.md` has the list of
files to touch.
"""

from typing import NamedTuple

from chatapi.wire.protocols.chat.bitseek import Bitseek
from chatapi.wire.protocols.chat.llama import Llama
from chatapi.wire.protocols.chat.openai import Answer, OpenAI
from chatapi.wire.protocols.chat.opentoken import OpenToken
from chatapi.wire.protocols.text_completions.encoder import BitseekText, LlamaText, OpenAIText, OpenTokenText


class Dialect(NamedTuple):
    """A wire format: its name, and the encoder of an answer to each kind of request."""

    name: str
    chat: type[OpenAI]
    text: type[OpenAIText]


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("openai", OpenAI, OpenAIText),
        Dialect("opentoken", OpenToken, OpenTokenText),
        Dialect("bitseek", Bitseek, BitseekText),
        Dialect("llama", Llama, LlamaText),
    )
}


class UnknownDialect(Exception):
    """The client asked for a dialect that there is not; `name` is what it asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def choose(*wishes: str) -> Dialect:
    """The first wish that is not empty: header, then URL prefix, then the key's default, then the server's.

    Raises `UnknownDialect`.
    """
    name = next((wish for wish in wishes if wish), "")
    if name not in DIALECTS:
        raise UnknownDialect(name)
    return DIALECTS[name]


__all__ = ["DIALECTS", "Answer", "Dialect", "OpenAI", "OpenAIText", "UnknownDialect", "choose"]
