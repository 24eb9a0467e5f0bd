"""The accounted floor's commands to Redis, and its Celery message."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from django.conf import settings

from bench.floor import Job
from chatapi.celery import app
from chatapi.redis_client import DedicatedConnection, connect
from chatapi.task_queue import sorted_sets

TASK = "accounted-floor"
BLOCK_MS = 1_000


class Commands:
    """Sends the floor's commands on a connection of their own, for half of what a client's pool costs."""

    def __init__(self) -> None:
        self._call = DedicatedConnection(connect(settings.REDIS_URL)).call

    async def xadd(self, stream: str, fields: Mapping[str, bytes], maxlen: int) -> None:
        await self._call("XADD", stream, "MAXLEN", "~", maxlen, "*", "pieces", fields["pieces"])

    async def xread(self, streams: Mapping[str, bytes], block: int) -> list[Any]:
        (stream, last), *_ = streams.items()
        # The connection takes a reply of more than three seconds for lost.
        found = await self._call("XREAD", "BLOCK", block or BLOCK_MS, "STREAMS", stream, last)
        return [
            (inbox, [(name, {b"pieces": pieces}) for name, (_, pieces) in entries])
            for inbox, entries in (found or {}).items()
        ]

    async def enqueue(self, messages: Sequence[tuple[int, bytes]]) -> list[None]:
        """Add messages to the sorted set from which chatapi's transport takes them, in their order."""
        key = app.conf.broker_transport_options.get("global_keyprefix", "") + app.conf.task_default_queue
        await self._call("ZADD", sorted_sets(key)[0], *(part for message in messages for part in message))
        return [None] * len(messages)


def celery_message(job: Job) -> bytes:
    """Return Celery's message of protocol 2, without the parts that a worker does not need."""
    arguments = job.inbox, job.number, job.body.decode()
    number = str(job.number)
    return msgspec.json.encode(
        {
            "body": msgspec.json.encode((arguments, {}, {})).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"task": TASK, "id": number},
            "properties": {"delivery_tag": number, "delivery_info": {}},
        }
    )
