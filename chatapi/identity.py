"""The ids of generations: UUIDv7 inside, `chatcmpl-<hex>` on the wire, or as another protocol writes it."""

import re
import secrets
import time
from uuid import UUID

from chatapi.wire.protocols import PROTOCOLS

_PUBLIC = re.compile(r"([a-z_:-]*)([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)


def new_id() -> UUID:
    """A fresh UUID version 7 (RFC 9562, section 5.7): ids sort by the time they were made, which keeps their
    index dense.
    """
    milliseconds = time.time_ns() // 1_000_000
    value = (
        (milliseconds & (2**48 - 1)) << 80
        | 0x7 << 76
        | secrets.randbits(12) << 64
        | 0b10 << 62
        | secrets.randbits(62)
    )
    return UUID(int=value)


def public_id(generation_id: UUID) -> str:
    """The id as clients see it in the canonical dialect, in receipts and headers."""
    return f"chatcmpl-{generation_id.hex}"


def parse_id(text: str) -> UUID | None:
    """Return the id in any form that a protocol writes it in, or None."""
    match = _PUBLIC.fullmatch(text)
    if match is None or match[1] not in {"", *(p for row in PROTOCOLS.values() for p in row.id_prefixes)}:
        return None
    return UUID(match[2])


def created(generation_id: UUID) -> int:
    """When the id was made, in Unix seconds: `created` on the wire, the same for every process that tells of
    it.
    """
    return (generation_id.int >> 80) // 1_000


OPENAI_VERSION = "2020-10-01"
"""The only version of OpenAI's API that there has ever been; its SDKs show it (`openai-version`)."""

_ECHOED = re.compile(rb"[A-Za-z0-9_-]{1,64}")


def request_id(wish: bytes | None, generation_id: UUID) -> bytes:
    """The `x-request-id` of an answer: the client's own if it is harmless, else one of ours."""
    if wish is not None and _ECHOED.fullmatch(wish):
        return wish
    return b"req_" + generation_id.hex.encode()
