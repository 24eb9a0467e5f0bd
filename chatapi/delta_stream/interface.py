"""The interface of a transport of delta streams, for their readers and writers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from chatapi.delta_stream.entries import Entry, Frame, Rest, Sealed
from chatapi.delta_stream.jobs import Cancellation, Job, KeptRequest

# Keeps requests, then executes the command of the queue that enqueues them.
KeepAndEnqueue = Callable[[Sequence[KeptRequest], Sequence[bytes | str | float]], Awaitable[None]]


class Signs(NamedTuple):
    """The signs of life of some web processes, by their names."""

    heard: set[str]
    """The processes that have renewed their sign of life within the last seconds."""
    connected: set[str]
    unknown: frozenset[str] = frozenset()
    """The processes that are known only to servers that have not answered."""


class Presence(Protocol):
    """The signs of life of this web process on one server, sent by a thread: a blocked event loop does not
    stop it.

    The thread also removes entries from the process's inbox that have been read.
    """

    async def start(self) -> None:
        """Wait until the server knows this process. Raises `StreamUnavailable`."""

    def stop(self) -> None:
        """Send no more signs of life, and disconnect."""


class DeltaStream(Protocol):
    """The generations of one server; `StreamServers` has all servers.

    Each method raises `StreamUnavailable` if it can't reach the server.
    """

    async def ping(self, within_s: float) -> None:
        """Wait up to this time for the server to answer. Raises `StreamUnavailable` with the reason."""

    async def aclose(self) -> None:
        """Close its connections."""

    # ---- the request

    async def keep(self, requests: Sequence[KeptRequest]) -> None:
        """Keep the requests until their terminal deltas."""

    def keep_and_enqueue(self, broker_url: str) -> KeepAndEnqueue | None:
        """Return the function that keeps requests and enqueues them in one round trip; None if the queue at
        this URL is on another server.
        """
        ...

    async def keep_again(self, request: KeptRequest) -> bool:
        """Keep the request if its job is missing; return whether it was missing."""
        ...

    async def jobs(self, ids: Sequence[UUID]) -> list[tuple[Job | None, Cancellation | None]]:
        """Return each generation's job (None if it is lost) and its cancellation, if any."""
        ...

    # ---- the state, to which later requests refer

    async def state(self, generation_id: UUID) -> bytes | None:
        """Return the generation's state; None if there is none, nothing (`b""`) if it was deleted."""
        ...

    async def delete(self, generation_id: UUID, *, has_ended: bool) -> None:
        """Delete the generation's state, and its log if it has ended.

        It is put on the list of responses to store: what is stored of it in this moment is deleted, too.
        """

    # ---- responses to store in the database, or to delete from it

    async def responses_to_store(self, limit: int) -> list[UUID]:
        """Return some responses of the list, and reserve them for this caller for a moment."""
        ...

    async def forget_to_store(self, generation_id: UUID) -> None:
        """Remove the response from that list."""

    # ---- deltas

    async def publish(self, entries: Sequence[Entry]) -> set[UUID]:
        """Write all entries in one round trip; return the generations whose log has a newer fence."""
        ...

    async def read_inbox(self, name: str, *, after: bytes, block_ms: int) -> list[tuple[bytes, list[Frame]]]:
        """Return names and frames of the inbox's entries after the one named `after` (empty: all entries).
        Waits up to `block_ms` for the first.
        """
        ...

    async def read_logs(
        self, after: Mapping[UUID, bytes], *, block_ms: int | None
    ) -> dict[UUID, list[Frame]]:
        """Return the next frames of these generations' logs after the named entries (empty: from the start).

        Logs without new frames are left out. Waits up to `block_ms` for the first frame; None: does not wait.
        The frame of a seal has an empty batch.
        """
        ...

    def presence(
        self, name: str, *, read_up_to: Callable[[], bytes], is_unknown: Callable[[], None]
    ) -> Presence:
        """Return the signs of life of the process that reads this inbox.

        `read_up_to` returns the name of the inbox's entry that was read last. The thread calls `is_unknown`
        if the server did not know this process. The server may then have lost the inbox, too: `read_up_to`
        must return an empty name until the reader has begun again.
        """
        ...

    async def signs_of_life(self, inboxes: Sequence[str]) -> Signs:
        """Return the signs of life of the processes that read these inboxes."""
        ...

    async def seal(self, generation_id: UUID, fence: int) -> Sealed:
        """Close the log for every older fence; return its content, which clients may have seen."""
        ...

    async def replay(self, generation_id: UUID, after_seq: int = 0) -> Rest:
        """Return the log's deltas after number `after_seq`. Raises `StreamLost` if some of them are lost, or
        the log ends before `after_seq`.
        """
        ...

    async def tail(
        self, generation_id: UUID, after: bytes, seq: int, *, most_entries: int = ...
    ) -> tuple[bytes, Rest]:
        """Read the log after the entry named `after` (empty: from its start) for a reader that has the deltas
        up to `seq`.

        Returns the name of the last entry read and the new deltas. Raises `StreamLost` if some are lost.
        """
        ...

    async def last_seq(self, generation_id: UUID) -> int:
        """Return the number of the last delta in the log; 0 if there is none."""
        ...

    async def has_job(self, generation_id: UUID) -> bool:
        """Return whether the job is there; the step that publishes the terminal delta deletes it."""
        ...

    async def has_log(self, generation_id: UUID) -> bool:
        """Return whether any part of the log is still kept."""
        ...

    # ---- garbage collection

    def lasting(self) -> AsyncIterator[set[UUID]]:
        """Yield, page by page, the generations whose terminal delta has not been published."""
        ...

    async def forget(self, after_ms: Mapping[UUID, int]) -> None:
        """Delete these generations' jobs. Their logs and states expire after this time at the latest."""

    # ---- cancellation

    async def cancel(self, generation_id: UUID, why: Cancellation, *, ttl_ms: int) -> None:
        """Ask the worker that runs the generation, or will run it, to stop it."""

    async def cancel_all(self, cancellations: Sequence[tuple[UUID, Cancellation]], *, ttl_ms: int) -> None:
        """Ask the workers that run these generations, or will run them, to stop them."""

    async def cancelled_among(self, ids: Sequence[UUID]) -> dict[UUID, Cancellation]:
        """Return those that are cancelled, for workers that may have missed the message."""
        ...

    def cancellations(self, worker: str = "") -> AsyncIterator[tuple[UUID, Cancellation]]:
        """Yield generations as they are cancelled, until the connection is lost.

        The connection shows that this worker lives (`connected_workers`).
        """
        ...

    async def connected_workers(self) -> set[str]:
        """Return the names of all workers that listen for cancellations."""
        ...
