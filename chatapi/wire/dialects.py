"""The dialects that chat and text completions share, and which one a request gets."""

from typing import NamedTuple

from chatapi.wire.protocols import chat, text_completions
from chatapi.wire.protocols.chat.openai import OpenAI
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.text_completions.encoder import OpenAIText


class Dialect(NamedTuple):
    """A dialect's name, and its encoders; a row of `PROTOCOLS` has all else."""

    name: str
    chat: type[OpenAI]
    text: type[OpenAIText]


DIALECTS: dict[str, Dialect] = {
    name: Dialect(name, encoder, text_completions.ENCODERS[name]) for name, encoder in chat.ENCODERS.items()
}


class UnknownDialect(Exception):
    """The client asked for a dialect that does not exist, by this `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def choose(*wishes: str) -> Dialect:
    """Return the first wish that is not empty: header, then URL prefix, the key's default, the server's.

    Raises `UnknownDialect`.
    """
    name = next((wish for wish in wishes if wish), "")
    if name not in DIALECTS:
        raise UnknownDialect(name)
    return DIALECTS[name]


__all__ = ["DIALECTS", "Answer", "Dialect", "OpenAI", "UnknownDialect", "choose"]
