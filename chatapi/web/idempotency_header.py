"""The `Idempotency-Key` header, by which a repeated request counts once (IETF draft, Stripe's convention)."""

import hashlib
import re

from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import RequestSummary
from usage.books.idempotency import Idempotency

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def of(header: str | None, request: RequestSummary) -> Idempotency | None:
    """Return what identifies the request in the books; None without a header. Raises `InvalidRequest`."""
    if header is None:
        return None
    digest = digest_of(header)
    if digest is None:
        message = (
            "Invalid 'Idempotency-Key' header: expected 1 to 255 printable ASCII characters without spaces."
        )
        raise InvalidRequest(message, "Idempotency-Key", is_stream=request.stream)
    return Idempotency(digest, request.digest)


def digest_of(header: str) -> str | None:
    """Return the header's value as the books store it; None if it is not valid."""
    return hashlib.sha256(header.encode()).hexdigest() if _KEY.fullmatch(header) else None
