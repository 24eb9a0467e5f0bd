"""Responses: `POST /v1/responses` and `/v1/responses/input_tokens` (docs/responses.md)."""

from dataclasses import replace

from chatapi.wire.deltas import Failed
from chatapi.wire.protocols.envelope import ErrorAnswer, openai_error, renamed
from chatapi.wire.protocols.protocol import Dialect, Protocol
from chatapi.wire.protocols.responses.encoder import CountFolder, Encoder, Folder
from chatapi.wire.protocols.responses.reference import COUNT, CREATE, ROUTES
from chatapi.wire.protocols.responses.request import (
    COUNT_NAME,
    NAME,
    parse,
    parse_count,
    parse_resolved,
    parse_resolved_count,
)
from chatapi.wire.protocols.responses.response import ID_PREFIX, PARAMETER_NAMES
from chatapi.wire.protocols.responses.stored import accepted


def _envelope(failure: Failed, *, request_id: str = "", is_invalid_stream: bool = False) -> ErrorAnswer:
    """Return the failure as an HTTP answer; see `protocol.Envelope`."""
    return openai_error(renamed(failure, PARAMETER_NAMES))


_DIALECT = Dialect(
    name="openai",
    public_id=(ID_PREFIX + "{}").format,
    encoder=Encoder,
    folder=Folder,
    envelope=_envelope,
    accepted=accepted,
)
RESPONSES = Protocol(
    name=NAME,
    parse=parse,
    parse_resolved=parse_resolved,
    dialects={_DIALECT.name: _DIALECT},
    id_prefixes=(ID_PREFIX,),
    model_kind="chat",
    parameter_names=PARAMETER_NAMES,
    operations=(CREATE,),
    routes=ROUTES,
)
COUNT_INPUT = Protocol(
    name=COUNT_NAME,
    parse=parse_count,
    parse_resolved=parse_resolved_count,
    dialects={_DIALECT.name: replace(_DIALECT, encoder=None, folder=CountFolder)},
    id_prefixes=(),
    model_kind="chat",
    parameter_names=PARAMETER_NAMES,
    counts_tokens=True,
    operations=(COUNT,),
)
