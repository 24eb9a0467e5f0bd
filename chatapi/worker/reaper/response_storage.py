"""Copies settled responses of projects that store them for days from Redis into the database.

From its admission until it is stored, a response is on a list in Redis. So no client waits for the storing,
and if a process dies, another one stores the responses that are left on the list. A deletion puts a response
on the list again: if it was stored at the same moment, its row is deleted here.
"""

import logging
from functools import partial
from uuid import UUID

from chatapi import response_store
from chatapi.concurrency import repeat
from chatapi.delta_stream import DeltaStream, StreamLost, StreamUnavailable
from chatapi.response_store import MAX_RESPONSE_BYTES, Content
from chatapi.wire import deltas
from chatapi.wire.deltas import TERMINAL
from usage.books import reports
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError

log = logging.getLogger(__name__)

EVERY_S = 1.0
BATCH = 100
# How long after a settlement its terminal delta may still come.
PUBLISHING_MS = 5_000


async def store_responses(commits: GroupCommit, stream: DeltaStream) -> None:
    """Store responses for ever. Any number of processes may do it at the same time."""
    duty = partial(_store_settled, commits, stream)
    await repeat(EVERY_S, "responses are not stored", duty, expected=(UsageError, StreamUnavailable))


async def _store_settled(commits: GroupCommit, stream: DeltaStream) -> None:
    """Store the responses on the list that are settled."""
    is_full = True
    while is_full:
        ids = await stream.responses_to_store(BATCH)
        is_full = len(ids) == BATCH
        settled_ms_ago = await commits.read(reports.settled_ms_ago, ids) if ids else {}
        for generation_id, age_ms in settled_ms_ago.items():
            try:
                await _store(commits, stream, generation_id, age_ms)
            except StreamLost as error:
                log.error("the response %s is not stored: %s", generation_id.hex, error)
                await stream.forget_to_store(generation_id)


async def _store(commits: GroupCommit, stream: DeltaStream, generation_id: UUID, age_ms: int) -> None:
    """Store a settled response; raises `StreamLost` if its log is not whole, or too large."""
    if state := await stream.state(generation_id):
        batches, has_ended = await _log(stream, generation_id)
        if not has_ended and age_ms < PUBLISHING_MS:
            return
        await commits.read(response_store.write, generation_id, Content(state, batches))
        state = await stream.state(generation_id)
    if state == b"":
        # This process, or another one, may have written the row after the deletion.
        await commits.read(response_store.delete, generation_id)
    await stream.forget_to_store(generation_id)


async def _log(stream: DeltaStream, generation_id: UUID) -> tuple[list[bytes], bool]:
    """Return the deltas of the log, and whether the terminal one is among them."""
    batches: list[bytes] = []
    seq, n_bytes, name, before = 0, 0, b"", None
    has_ended = False
    while name != before:
        before = name
        name, (found, seq) = await stream.tail(generation_id, name, seq)
        if not found:
            continue
        batches.append(deltas.encode(found))
        has_ended = isinstance(found[-1], TERMINAL)
        n_bytes += len(batches[-1])
        if n_bytes > MAX_RESPONSE_BYTES:
            raise StreamLost(f"it has more than {MAX_RESPONSE_BYTES} bytes")
    return batches, has_ended
