"""Text completions: `POST /v1/completions`, in the dialects of chat completions."""

from chatapi.wire.protocols.protocol import Protocol
from chatapi.wire.protocols.text_completions.encoder import BitseekText, LlamaText, OpenAIText, OpenTokenText
from chatapi.wire.protocols.text_completions.reference import CREATE
from chatapi.wire.protocols.text_completions.request import NAME, parse

ENCODERS = {"openai": OpenAIText, "opentoken": OpenTokenText, "bitseek": BitseekText, "llama": LlamaText}

TEXT_COMPLETIONS = Protocol(
    name=NAME,
    parse=parse,
    dialects={name: encoder.dialect(name) for name, encoder in ENCODERS.items()},
    id_prefixes=tuple(dict.fromkeys(encoder.id_prefix for encoder in ENCODERS.values())),
    model_kind="chat",
    operations=(CREATE,),
)
