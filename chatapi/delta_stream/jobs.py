"""The job that a web process passes to the worker, and the failures that end a stream without an engine."""

from enum import Enum
from typing import NamedTuple
from uuid import UUID

import msgspec

from chatapi.wire.deltas import Failed

# How long a log without an end is kept, and a job after its time in the queue: longer than
# `models.MAX_TIMEOUT_MS`.
RUN_TTL_MS = 26 * 3_600_000
# The end of a cancelled generation whose choices have not ended: it must not look like a complete answer.
CANCELLED = Failed(
    "The request was cancelled. What was generated is charged; see the receipt.", code="cancelled", status=409
)
# The end if the worker has died, sent by the reaper or by the client's web process.
WORKER_LOST = Failed(
    "The worker was lost while it generated. What was generated is charged; see the receipt.",
    code="worker_lost",
    status=502,
)
# The end if the time in the queue is over.
NOT_STARTED = Failed(
    "No worker was free in time. Nothing was charged; try again.",
    code="queue_timeout",
    status=503,
    retry_after_ms=1_000,
)


class Cancellation(Enum):
    """Why a generation is to stop."""

    CLIENT_LEFT = b"left"
    """The client has left; the deployment's rule may let the generation run on."""
    ASKED = b"asked"
    """The client asked for it: the stream gets a normal end with the usage."""
    STOPPED = b"stopped"
    """An operator stops it: the stream must not look like a complete answer."""

    @classmethod
    def _missing_(cls, value: object) -> "Cancellation":
        return cls.ASKED  # a value of another version


class Job(msgspec.Struct, frozen=True, array_like=True):
    """The data that the web process passes to the worker, beside the generation's id."""

    inbox: str
    """The inbox that gets the deltas; empty: only the log gets them."""
    request: bytes
    runs_on: bool = False
    """The generation runs to its end even if the client leaves: the client will fetch the answer later."""
    is_not_kept: object = None
    """True if there was no room for the request's state. Other values, of earlier releases, are ignored."""
    trace_headers: dict[str, str] = {}
    """The headers of the request's span (`chatapi/tracing/`)."""


class KeptRequest(NamedTuple):
    """The data of an admitted request that is kept before its worker gets a message."""

    generation_id: UUID
    job: Job
    state: bytes = b""
    """The data that later requests may refer to; it expires with the generation's log."""
    stores_response: bool = False
    """The response is stored in the database after its end, if it has a state."""
