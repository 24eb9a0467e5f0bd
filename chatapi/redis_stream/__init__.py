"""Delta streams in Redis: a transport for `chatapi/delta_stream/`.

Each server has these keys:

    job:<id>            the request, for the worker; deleted with the terminal delta
    state:<id>          what later requests may refer to; lives as long as the log
    log:<id>            stream, the record: one entry per batch, named `<fence>-<first seq>`; outlives the end
    inbox:<name>        stream, one per web process: the deltas of all its clients, one entry per tick
    unstored            sorted set: responses that are to be stored in the database, by when to look at them
    cancelled:<id>      the generation is cancelled; the channel `cancel` says so at once
    web:<name>          a web process that lives (`presence.py`)
    channel `worker:<name>`    its subscriber is that worker's connection, which shows that it lives

Redis refuses a log entry whose name is not above the last one, and that is the fence; the same script
(`scripts.py`) keeps the entry out of the inbox.
"""

from chatapi.redis_stream.presence import RedisPresence
from chatapi.redis_stream.stream import RedisStream

__all__ = ["RedisPresence", "RedisStream"]
