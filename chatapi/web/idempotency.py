"""The `Idempotency-Key` header: what a client sends so that a repeated request is one request (IETF draft, Stripe's convention)."""

import hashlib
import re

from chatapi.wire import requests
from chatapi.wire.requests import ChatRequest, InvalidRequest, TextRequest
from usage.idempotency import Idempotency

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def of(header: str | None, endpoint: str, request: ChatRequest | TextRequest) -> Idempotency | None:
    """What the header and the request stand for in the books; None without a header. Raises `InvalidRequest`."""
    if header is None:
        return None
    if not _KEY.fullmatch(header):
        message = "Invalid 'Idempotency-Key' header: expected 1 to 255 printable ASCII characters without spaces."
        raise InvalidRequest(message, "Idempotency-Key", is_stream=request.stream)
    asked = hashlib.sha256(endpoint.encode() + b"\n" + requests.to_bytes(request))
    return Idempotency(hashlib.sha256(header.encode()).hexdigest(), asked.hexdigest())
