"""Protocols: requests, answers and errors of one family of clients. Each is a folder here, and a row in
`PROTOCOLS`.

Nothing outside a protocol's folder knows its parameters, envelopes or ids: an import contract names the few
modules that may import from one. wire/README.md has the steps for adding one. A test adds a row while it runs
with `monkeypatch.setitem(PROTOCOLS, protocol.name, protocol)`.
"""

import re
from collections.abc import Container
from itertools import chain

from chatapi.wire import request_body
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
for _protocol in PROTOCOLS.values():
    for _operation in _protocol.operations:
        request_body.check_body(_operation.request)
        _segment = _operation.path.split("/")[2]  # by which `protocol_of` finds the protocol
        assert _protocol.name.split(".")[0] == _segment, (
            f"{_protocol.name!r} does not begin with {_segment!r}"
        )
_DIALECTS = {name for protocol in PROTOCOLS.values() for name in protocol.dialects if name}
# The first segment after `/v1/`, which clients may have left out; a proxy's prefix may come before it.
_FIRST_SEGMENT = re.compile(rf"(?:.*?/v1/|/(?:(?:{'|'.join(sorted(_DIALECTS))})/)?)([^/?]+)")


def protocol_named(name: str) -> Protocol:
    """Return the protocol of a row with this `endpoint`; chat completions if it is unknown."""
    return PROTOCOLS.get(name, CHAT)


def protocol_of(path: str, header_names: Container[str] = ()) -> Protocol:
    """Return the protocol that the path names. On a route that all protocols share, return the one whose
    clients send one of these headers, else chat completions.
    """
    found = _FIRST_SEGMENT.match(path)
    protocols = PROTOCOLS.values()
    by_path = (each for each in protocols if found and each.name.partition(".")[0] == found[1])
    by_header = (each for each in protocols if any(name in header_names for name in each.client_headers))
    return next(chain(by_path, by_header), CHAT)


def all_key_headers() -> dict[str, str]:
    """Return the headers that may hold an API key, for all protocols; see `Protocol.key_headers`."""
    return {name: scheme for each in PROTOCOLS.values() for name, scheme in each.key_headers.items()}


def error_answer(
    path: str, failure: Failed, request_id: str, header_names: Container[str] = ()
) -> ErrorAnswer:
    """Return the answer to a request that failed before its protocol's code ran; see `protocol_of`."""
    protocol = protocol_of(path, header_names)
    answer = protocol.dialect("").envelope(failure, request_id=request_id)
    ids = ((name, request_id.encode()) for name in protocol.request_id_headers)
    length = (b"content-length", b"%d" % len(answer.body))
    return answer._replace(headers=(*answer.headers, length, *ids))


__all__ = ["PROTOCOLS", "Answer", "Dialect", "Operation", "Protocol", "error_answer"]
__all__ += ["all_key_headers", "protocol_named", "protocol_of"]
