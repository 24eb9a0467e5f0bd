"""Embeddings: `POST /v1/embeddings`, one dialect, never a stream."""

from chatapi.wire.protocols.embeddings.folder import EmbeddingsFolder
from chatapi.wire.protocols.embeddings.reference import EMBED
from chatapi.wire.protocols.embeddings.request import NAME, parse
from chatapi.wire.protocols.envelope import openai_error
from chatapi.wire.protocols.protocol import Dialect, Protocol

EMBEDDINGS = Protocol(
    name=NAME,
    parse=parse,
    dialects={
        "openai": Dialect(
            name="openai",
            public_id="embd-{}".format,
            encoder=None,
            folder=EmbeddingsFolder,
            envelope=openai_error,
        )
    },
    id_prefixes=("embd-",),
    model_kind="embeddings",
    operations=(EMBED,),
)
