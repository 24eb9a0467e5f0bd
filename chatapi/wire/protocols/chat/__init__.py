"""Chat completions: `POST /v1/chat/completions`, in several dialects."""

from chatapi.wire.protocols.chat.bitseek import Bitseek
from chatapi.wire.protocols.chat.llama import Llama
from chatapi.wire.protocols.chat.openai import OpenAI
from chatapi.wire.protocols.chat.opentoken import OpenToken
from chatapi.wire.protocols.chat.reference import ROUTES, create
from chatapi.wire.protocols.chat.request import NAME, parse
from chatapi.wire.protocols.chat.ticket import ticket
from chatapi.wire.protocols.protocol import Protocol

ENCODERS = {"openai": OpenAI, "opentoken": OpenToken, "bitseek": Bitseek, "llama": Llama}

CHAT = Protocol(
    name=NAME,
    parse=parse,
    dialects={name: encoder.dialect(name) for name, encoder in ENCODERS.items()},
    id_prefixes=tuple(dict.fromkeys(encoder.id_prefix for encoder in ENCODERS.values())),
    model_kind="chat",
    operations=(create(ENCODERS),),
    routes=ROUTES,
    ticket=ticket,
)
