"""Protocols: how one family of clients talks. Each is a folder here, and a row in `PROTOCOLS`.

Nothing outside a protocol's folder knows its parameters, envelopes or ids. Adding one: README.md. A test adds
a row for its own time with `monkeypatch.setitem(PROTOCOLS, protocol.name, protocol)`.
"""

import re
from collections.abc import Container

from chatapi.wire.deltas import Failed
from chatapi.wire.protocols.chat import CHAT
from chatapi.wire.protocols.embeddings import EMBEDDINGS
from chatapi.wire.protocols.envelope import ErrorAnswer
from chatapi.wire.protocols.messages import COUNT_TOKENS, MESSAGES
from chatapi.wire.protocols.protocol import Answer, Dialect, Operation, Protocol
from chatapi.wire.protocols.responses import COUNT_INPUT, RESPONSES
from chatapi.wire.protocols.text_completions import TEXT_COMPLETIONS

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        *(CHAT, TEXT_COMPLETIONS, EMBEDDINGS),
        *(RESPONSES, COUNT_INPUT, MESSAGES, COUNT_TOKENS),
    )
}
_FIRST_SEGMENT = re.compile(r"/(?:[^/]+/)?(?:v1/)?([^/?]+)")


def protocol_of_path(path: str) -> Protocol:
    """Return the protocol that is named by the path's first segment behind `/v1/` (which clients may have
    left out), else chat completions.
    """
    found = _FIRST_SEGMENT.match(path)
    return PROTOCOLS.get(found[1], CHAT) if found else CHAT


def error_answer(
    path: str, failure: Failed, request_id: str, header_names: Container[str] = ()
) -> ErrorAnswer:
    """Return the answer to a request that failed before its protocol's code ran.

    On a route that all protocols share, the names of its headers tell the client's protocol.
    """
    protocol = protocol_of_path(path)
    if protocol is CHAT:
        own = (each for each in PROTOCOLS.values() if each.client_header in header_names)
        protocol = next(own, CHAT)
    answer = protocol.dialect("").envelope(failure, request_id=request_id)
    ids = ((name, request_id.encode()) for name in protocol.request_id_headers)
    length = (b"content-length", b"%d" % len(answer.body))
    return answer._replace(headers=(*answer.headers, length, *ids))


__all__ = ["PROTOCOLS", "Answer", "Dialect", "Operation", "Protocol", "error_answer", "protocol_of_path"]
