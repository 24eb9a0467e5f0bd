"""A generation's deltas on their way from the worker to clients: publish, follow, replay, cancel, seal.

The methods of `DeltaStream`, by the process that calls them, are all that other code knows of it:

    all       aclose
    web       keep, keep_and_enqueue, keep_again, cancel, cancel_all, connected_workers, state, delete, ping
              presence, read_inbox, read_logs, tail, replay, last_seq, has_job, has_log
    worker    jobs, publish, cancellations, cancelled_among, signs_of_life
    pages     cancel, connected_workers, ping
    reaper    jobs, seal, publish, lasting, forget, state, tail, responses_to_store, forget_to_store

This package does not depend on a transport. A transport is a class with these methods, which makes a
`Presence` and raises `StreamUnavailable` and `StreamLost`, and a row of `chatapi/transports/__init__.py`. The
only one is `chatapi/transports/redis_stream/`. Each generation is on one server (`servers.py`).

A server keeps, for each generation, its job, its state and its **log**: the record, one entry per batch,
named `<fence>-<first seq>`. It also has an **inbox** for each web process: the deltas of all its clients.
Four rules hold for every transport:

1. The fence: a log refuses an entry whose name is not above the last one. So once the reaper has sealed a log
   under a newer fence, entries of an older holder are refused, and none of them reaches an inbox; and a
   repeated write is harmless.
2. The step that writes the last batch deletes the job.
3. Signs of life distinguish a late web process from a dead one (`Presence`).
4. A worker's connection (`cancellations`) ends with its process.

Deltas carry consecutive numbers (seq, from 1); a reader that sees a gap reads the log. The end of a lost run
has the number `MAX_SEQ`, because clients may have deltas that the server has lost.
"""

from chatapi.delta_stream.entries import MAX_SEQ, Batch, Entry, Frame, LogEntry, Rest, Sealed, place_of
from chatapi.delta_stream.errors import StreamLost, StreamUnavailable, in_time
from chatapi.delta_stream.interface import DeltaStream, KeepAndEnqueue, Presence, Signs
from chatapi.delta_stream.jobs import (
    CANCELLED,
    NOT_STARTED,
    RUN_TTL_MS,
    WORKER_LOST,
    Cancellation,
    Job,
    KeptRequest,
)
from chatapi.delta_stream.servers import ByServer, StreamServers

__all__ = [
    "CANCELLED",
    "MAX_SEQ",
    "NOT_STARTED",
    "RUN_TTL_MS",
    "WORKER_LOST",
    "Batch",
    "ByServer",
    "Cancellation",
    "DeltaStream",
    "Entry",
    "Frame",
    "Job",
    "KeepAndEnqueue",
    "KeptRequest",
    "LogEntry",
    "Presence",
    "Rest",
    "Sealed",
    "Signs",
    "StreamLost",
    "StreamServers",
    "StreamUnavailable",
    "in_time",
    "place_of",
]
