"""Chat completions: `POST /v1/chat/completions`, in several dialects."""

import msgspec

from chatapi.wire.protocols.chat.bitseek import BITSEEK
from chatapi.wire.protocols.chat.encoder import ChatEncoder
from chatapi.wire.protocols.chat.llama import LLAMA
from chatapi.wire.protocols.chat.opentoken import OPENTOKEN
from chatapi.wire.protocols.chat.reference import ROUTES, create
from chatapi.wire.protocols.chat.request import NAME, parse
from chatapi.wire.protocols.chat.style import OPENAI
from chatapi.wire.protocols.protocol import Protocol

STYLES = {style.name: style for style in (OPENAI, OPENTOKEN, BITSEEK, LLAMA)}
"""The dialects, also of text completions."""


def _ticket(secret: str, expires_at: int, base_path: str) -> bytes:
    """Return the object of a ticket: the right to one stream, for an EventSource, which has no key."""
    url = f"{base_path}/v1/chat/completions?ticket={secret}"
    body = {"object": "chat.completion.ticket", "id": secret, "expires_at": expires_at, "url": url}
    return msgspec.json.encode(body)


CHAT = Protocol(
    name=NAME,
    parse=parse,
    dialects={name: ChatEncoder.dialect(style) for name, style in STYLES.items()},
    id_prefixes=tuple(dict.fromkeys(map(ChatEncoder.prefix, STYLES.values()))),
    model_kind="chat",
    operations=(create(STYLES.values()),),
    routes=ROUTES,
    ticket=_ticket,
)
