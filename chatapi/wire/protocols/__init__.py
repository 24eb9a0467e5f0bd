"""Protocols: how one family of clients talks. Each is a folder here, and a row in `PROTOCOLS`.

Nothing outside a protocol's folder knows its parameters, envelopes or ids. Adding one: README.md. A test adds
a row for its own time with `monkeypatch.setitem(PROTOCOLS, protocol.name, protocol)`.
"""

from chatapi.wire.protocols.chat import CHAT
from chatapi.wire.protocols.messages import COUNT_TOKENS, MESSAGES
from chatapi.wire.protocols.protocol import Answer, Dialect, Protocol
from chatapi.wire.protocols.text_completions import TEXT_COMPLETIONS

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol for protocol in (CHAT, TEXT_COMPLETIONS, MESSAGES, COUNT_TOKENS)
}

__all__ = ["PROTOCOLS", "Answer", "Dialect", "Protocol"]
