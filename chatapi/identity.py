"""Ids of generations, requests and processes.

A generation's id is a UUIDv7. On the wire it has its protocol's form: a prefix and the 32 digits.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from uuid import UUID

from chatapi.wire.protocols import PROTOCOLS, protocol_named

_PUBLIC = re.compile(r"([a-z_:-]*)([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)


# The number of a generation's streams server is the last hexadecimal digit of its id.
_SERVER_BITS = 4
MAX_STREAM_SERVERS = 1 << _SERVER_BITS


def new_id() -> UUID:
    """Return a new UUID version 7 (RFC 9562 section 5.7); it sorts by time, which keeps its index dense.

    The number of its streams server is 0.
    """
    milliseconds = time.time_ns() // 1_000_000
    drawn = secrets.randbits(80)  # once: each draw is a call of the kernel, in which other threads run
    value = (
        (milliseconds & (2**48 - 1)) << 80
        | 0x7 << 76
        | (drawn >> 68) << 64
        | 0b10 << 62
        | (drawn & (2 ** (62 - _SERVER_BITS) - 1)) << _SERVER_BITS
    )
    return UUID(int=value)


def server_number(generation_id: UUID) -> int:
    """Return the number of the streams server that the generation is on."""
    return generation_id.int % MAX_STREAM_SERVERS


def on_one_of(numbers: Sequence[int], generation_id: UUID) -> UUID:
    """Return the id with the number of one of these servers, chosen by the id's random bits."""
    own = generation_id.int >> _SERVER_BITS
    return UUID(int=own << _SERVER_BITS | numbers[own % len(numbers)])


def public_id(generation_id: UUID, endpoint: str, dialect: str) -> str:
    """Return the generation's id as its client sees it, in the form of this endpoint and dialect."""
    return protocol_named(endpoint).dialect(dialect).public_id(generation_id.hex)


def parse_id(text: str) -> UUID | None:
    """Return the id in any form that a protocol writes it in, or None."""
    match = _PUBLIC.fullmatch(text)
    if match is None or match[1] not in {"", *(p for row in PROTOCOLS.values() for p in row.id_prefixes)}:
        return None
    return UUID(match[2])


def created(generation_id: UUID) -> int:
    """Return the id's time in Unix seconds: `created` on the wire, the same in every process."""
    return (generation_id.int >> 80) // 1_000


_PROCESS = secrets.token_hex(4)


def process_name() -> str:
    """Return a name of this process that no other one has: host, random digits, process id.

    Containers may share a host's name and have the same process ids. A long host name loses its beginning,
    because the names of pods differ at their end. The result fits `Generation.worker`.
    """
    return f"{socket.gethostname()[-40:]}:{_PROCESS}:{os.getpid()}"


# The header `openai-version`, which SDKs show. OpenAI's API has never had another version.
OPENAI_VERSION = "2020-10-01"

_ECHOED = re.compile(rb"[A-Za-z0-9_-]{1,64}")


def request_id(client_id: bytes | None, generation_id: UUID) -> bytes:
    """Return a response's `x-request-id`: the client's if it matches `_ECHOED`, otherwise a generated one."""
    if client_id is not None and _ECHOED.fullmatch(client_id):
        return client_id
    return b"req_" + generation_id.hex.encode()
