"""Names what requests share that an upstream may have cached: a key, or the beginning of the prompt."""

from hashlib import blake2b
from itertools import chain, islice

from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.messages import Message, UserMessage, texts
from chatapi.wire.prompts import Messages, Texts

# A request in JSON that is shorter has a prompt that is not worth caching: about 1,024 tokens.
LONG_BYTES = 4 << 10
# The most messages, texts and characters of a text that are read of a beginning: an event loop reads them.
MAX_MESSAGES = 8
MAX_TEXTS = 32
MAX_CHARS = 2 << 10


def affinity_of(request: GenerationRequest, organization_id: int, request_bytes: int) -> bytes | None:
    """Return a digest that requests with the same cached prompt share; None if there is nothing to cache.

    A conversation keeps its digest as it grows: the messages up to the first one of the user.
    """
    if request.prompt_cache_key:
        parts = ["key", request.prompt_cache_key]
    elif request_bytes < LONG_BYTES or not (parts := _beginning(request)):
        return None
    digest = blake2b(str(organization_id).encode(), digest_size=16)
    for part in parts:
        digest.update(b"\0" + part[:MAX_CHARS].encode())
    return digest.digest()


def _beginning(request: GenerationRequest) -> list[str]:
    prompt = request.prompt
    if isinstance(prompt, Texts):
        return list(islice(prompt.texts(), 1))
    if not isinstance(prompt, Messages):
        return []
    beginning: list[Message] = []
    for message in prompt.messages[:MAX_MESSAGES]:
        beginning.append(message)
        if isinstance(message, UserMessage):
            break
    return list(islice(chain.from_iterable(map(texts, beginning)), MAX_TEXTS))
