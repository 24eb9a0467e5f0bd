"""Anthropic's Messages: `POST /v1/messages` and `/v1/messages/count_tokens` (docs/messages.md)."""

from dataclasses import replace

from chatapi.wire.protocols.messages.encoder import (
    PING,
    CountFolder,
    MessagesEncoder,
    MessagesFolder,
    public_id,
)
from chatapi.wire.protocols.messages.envelope import PARAMETER_NAMES, envelope, limit_headers
from chatapi.wire.protocols.messages.reference import COUNT, CREATE
from chatapi.wire.protocols.messages.request import COUNT_NAME, NAME, parse, parse_count
from chatapi.wire.protocols.protocol import Dialect, Protocol

_DIALECT = Dialect(
    name="anthropic",
    public_id=public_id,
    encoder=MessagesEncoder,
    folder=MessagesFolder,
    envelope=envelope,
    keep_alive=PING,
    keep_alive_with_ids=PING,
)
_REQUEST_IDS = (b"x-request-id", b"request-id")
MESSAGES = Protocol(
    name=NAME,
    parse=parse,
    dialects={_DIALECT.name: _DIALECT},
    id_prefixes=("msg_",),
    model_kind="chat",
    operations=(CREATE,),
    parameter_names=PARAMETER_NAMES,
    request_id_headers=_REQUEST_IDS,
    client_headers=("anthropic-version", "anthropic-beta"),
    limit_headers=limit_headers,
)
COUNT_TOKENS = Protocol(
    name=COUNT_NAME,
    parse=parse_count,
    dialects={_DIALECT.name: replace(_DIALECT, encoder=None, folder=CountFolder)},
    id_prefixes=(),
    model_kind="chat",
    counts_tokens=True,
    operations=(COUNT,),
    request_id_headers=_REQUEST_IDS,
    limit_headers=limit_headers,
)
