"""Finds requests whose prompts an upstream may have cached: they share a key, or the prompt's beginning."""

from hashlib import blake2b
from itertools import islice

from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.messages import UserMessage, texts
from chatapi.wire.prompts import Messages, Texts

# The length from which a prompt is worth caching: about 1,024 tokens.
LONG_BYTES = 4 << 10
# The most messages, texts and characters of a text that are read, because the event loop reads them.
MAX_MESSAGES = 8
MAX_TEXTS = 32
MAX_CHARS = 2 << 10


def affinity_of(request: GenerationRequest, organization_id: int, request_bytes: int) -> bytes | None:
    """Return a digest that requests with the same cached prompt share; None if there is nothing to cache.

    Without a key, the digest is that of the messages before the user's first one, if they are long: different
    questions share their cache. Otherwise it includes the user's first message, so that a conversation keeps
    its digest as it grows.
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
    beginning: list[str] = []
    for message in prompt.messages[:MAX_MESSAGES]:
        is_question = isinstance(message, UserMessage)
        if is_question and sum(len(text[:LONG_BYTES].encode()) for text in beginning) >= LONG_BYTES:
            break
        beginning += islice(texts(message), MAX_TEXTS - len(beginning))
        if is_question:
            break
    return beginning
