"""A generation's deltas in Redis: publish, follow, replay, cancel, seal.

The methods of `DeltaStream`, by the process that calls them, are all that other code knows of it:

    web       keep, keep_again, cancel, cancel_all, connected_workers, state, delete
              presence, read_inbox, tail, replay, last_seq, has_job, has_log
    worker    jobs, publish, cancellations, cancelled_among, signs_of_life
    pages     cancel, connected_workers, is_answering
    reaper    jobs, seal, publish, lasting, forget, state, tail, responses_to_store, forget_to_store

Another transport has to provide the same: `DeltaStream` with these methods, `Presence` with `start` and
`stop`, and their errors `StreamUnavailable` and `StreamLost`. `keep` gets a command of Redis only for a queue
on the same server.

Each generation is on one server (`servers.py`), which has these keys:

    job:<id>            the request, for the worker; deleted with the terminal delta
    state:<id>          what later requests may refer to; lives as long as the log
    log:<id>            stream, the record: one entry per batch, named `<fence>-<first seq>`; outlives the end
    inbox:<name>        stream, one per web process: the deltas of all its clients, one entry per tick
    unstored            sorted set: responses that are to be stored in the database, by when to look at them
    cancelled:<id>      the generation is cancelled; the channel `cancel` says so at once
    channel `worker:<name>`    its subscriber is that worker's connection, which shows that it lives

Redis refuses a log entry whose name is not above the last one, and that is the fence: once the reaper has
sealed a log under a newer fence, entries of an older holder are refused, and the same script keeps them out
of the inbox. It also makes a repeated write harmless. Deltas carry consecutive numbers (seq, from 1); a
reader that sees a gap reads the log. The end of a lost run has the number `MAX_SEQ`, because clients may have
deltas that Redis has lost.
"""

from chatapi.delta_stream.entries import MAX_SEQ, Batch, Entry, Frame, LogEntry, Rest, Sealed
from chatapi.delta_stream.errors import StreamLost, StreamUnavailable, in_time
from chatapi.delta_stream.jobs import CANCELLED, NOT_STARTED, WORKER_LOST, Cancellation, Job, KeptRequest
from chatapi.delta_stream.presence import Presence, Signs
from chatapi.delta_stream.scripts import RUN_TTL_MS
from chatapi.delta_stream.servers import ByServer, StreamServers
from chatapi.delta_stream.stream import INBOX_BEGINNING, DeltaStream

__all__ = [
    "CANCELLED",
    "INBOX_BEGINNING",
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
]
