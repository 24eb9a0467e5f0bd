"""Delta streams in Redis: a transport for `chatapi/delta_stream/`.

Each server has these keys:

    job:<id>            the request, for the worker; deleted with the terminal delta
    state:<id>          the data that later requests may refer to, kept as long as the log; empty if deleted
    log:<id>            stream, the record: one entry per batch, named `<fence>-<first seq>`; outlives the end
    inbox:<name>        stream, one per web process: the deltas of all its clients, one entry per tick
    unstored            sorted set: responses to store in the database, or to delete from it, by the time when
                        they are due
    cancelled:<id>      the generation is cancelled
    web:<name>          the sign of life of a web process (`presence.py`)

and these channels:

    cancel              a message for each cancelled generation
    alive:<name>        its subscriber is a web process (`presence.py`)
    worker:<name>       its subscriber is a worker: the subscription shows that it lives

The fence: Redis refuses a log entry whose name is not above the last one, and the same script (`scripts.py`)
keeps the entry out of the inbox.
"""

from chatapi.transports.redis_stream.presence import RedisPresence
from chatapi.transports.redis_stream.stream import RedisStream

__all__ = ["RedisPresence", "RedisStream"]
