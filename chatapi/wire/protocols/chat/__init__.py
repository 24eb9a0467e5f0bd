"""Chat completions: `POST /v1/chat/completions`, in several dialects."""

from chatapi.wire.protocols.chat.bitseek import BITSEEK
from chatapi.wire.protocols.chat.encoder import ChatEncoder
from chatapi.wire.protocols.chat.llama import LLAMA
from chatapi.wire.protocols.chat.opentoken import OPENTOKEN
from chatapi.wire.protocols.chat.reference import ROUTES, create
from chatapi.wire.protocols.chat.request import NAME, parse
from chatapi.wire.protocols.chat.style import OPENAI
from chatapi.wire.protocols.chat.ticket import ticket
from chatapi.wire.protocols.protocol import Protocol

STYLES = {style.name: style for style in (OPENAI, OPENTOKEN, BITSEEK, LLAMA)}
"""The dialects, also of text completions."""

CHAT = Protocol(
    name=NAME,
    parse=parse,
    dialects={name: ChatEncoder.dialect(style) for name, style in STYLES.items()},
    id_prefixes=tuple(dict.fromkeys(map(ChatEncoder.prefix, STYLES.values()))),
    model_kind="chat",
    operations=(create(STYLES.values()),),
    routes=ROUTES,
    ticket=ticket,
)
