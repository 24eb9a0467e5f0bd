"""Responses: `POST /v1/responses`."""

from chatapi.wire.protocols.envelope import openai_error
from chatapi.wire.protocols.protocol import Dialect, Protocol
from chatapi.wire.protocols.responses.request import NAME, parse
from chatapi.wire.protocols.responses.response import ID_PREFIX, Encoder, Folder
from chatapi.wire.protocols.responses.stored import accepted

RESPONSES = Protocol(
    name=NAME,
    parse=parse,
    dialects={
        "openai": Dialect(
            name="openai",
            public_id=(ID_PREFIX + "{}").format,
            encoder=Encoder,
            folder=Folder,
            envelope=openai_error,
            accepted=accepted,
        )
    },
    id_prefixes=(ID_PREFIX,),
)
