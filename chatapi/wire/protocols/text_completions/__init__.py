"""Text completions: `POST /v1/completions`, in the dialects of chat completions."""

from chatapi.wire.protocols.chat import STYLES
from chatapi.wire.protocols.protocol import Protocol
from chatapi.wire.protocols.text_completions.encoder import TextEncoder
from chatapi.wire.protocols.text_completions.reference import CREATE
from chatapi.wire.protocols.text_completions.request import NAME, parse

TEXT_COMPLETIONS = Protocol(
    name=NAME,
    parse=parse,
    dialects={name: TextEncoder.dialect(style) for name, style in STYLES.items()},
    id_prefixes=tuple(dict.fromkeys(map(TextEncoder.prefix, STYLES.values()))),
    model_kind="chat",
    operations=(CREATE,),
)
