"""The names of dialects, and which one a request gets."""

from typing import Final

from chatapi.wire.protocols import PROTOCOLS

# The names that clients may choose; a protocol without that dialect answers in its first one.
DIALECTS: Final = tuple(
    dict.fromkeys(name for protocol in PROTOCOLS.values() for name in protocol.dialects if name)
)


class UnknownDialect(Exception):
    """The client asked for a dialect that does not exist, by this `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def choose(*wishes: str) -> str:
    """Return the first wish that is not empty: of the header, the URL's prefix, the caller, the server.

    Raises `UnknownDialect`.
    """
    name = next((wish for wish in wishes if wish), "")
    if name not in DIALECTS:
        raise UnknownDialect(name)
    return name
