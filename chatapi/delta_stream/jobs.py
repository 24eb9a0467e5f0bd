"""What a web process hands to the worker, and the ends that no engine has written."""

from enum import Enum
from typing import NamedTuple
from uuid import UUID

import msgspec

from chatapi.wire.deltas import Failed

# How long a log lives without an end, and a job beyond its time in the queue: longer than
# `models.MAX_TIMEOUT_MS`.
RUN_TTL_MS = 26 * 3_600_000
# The end of a cancelled generation's stream, which must not look like a good end.
CANCELLED = Failed(
    "The request was cancelled. What was generated is charged; see the receipt.", code="cancelled", status=409
)
# The end when the worker has died, from the reaper or from the client's own web process.
WORKER_LOST = Failed(
    "The worker was lost while it generated. What was generated is charged; see the receipt.",
    code="worker_lost",
    status=502,
)
# The end when the time in the queue is over.
NOT_STARTED = Failed(
    "No worker was free in time. Nothing was charged; try again.",
    code="queue_timeout",
    status=503,
    retry_after_ms=1_000,
)


class Cancellation(Enum):
    """Why a generation is to stop."""

    CLIENT_LEFT = b"left"
    """The client has left; a deployment may let the generation run on."""
    ASKED = b"asked"
    """The client asked for it: the stream gets a normal end with the usage."""
    STOPPED = b"stopped"
    """An operator stops it: the stream must not look like the whole answer."""

    @classmethod
    def _missing_(cls, value: object) -> "Cancellation":
        return cls.ASKED  # what another version calls it


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What the web process hands to the worker besides the id."""

    inbox: str
    """Where the answer goes; empty for the log alone."""
    request: bytes
    runs_on: bool = False
    """The generation is finished even if its client leaves: a client will come back for the answer."""
    is_not_kept: object = None
    """True: there was no room for the request's state. Other values, of earlier releases, mean nothing."""
    trace_headers: dict[str, str] = {}
    """The headers of the request's span (`chatapi/tracing/`)."""


class KeptRequest(NamedTuple):
    """What is kept of an admitted request before its worker gets a message."""

    generation_id: UUID
    job: Job
    state: bytes = b""
    """What later requests may refer to; it expires with the generation's log."""
    stores_response: bool = False
    """The response is stored in the database after its end, if it has a state."""
