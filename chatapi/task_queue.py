"""Writes a generation's id as the Celery message that a worker pops from Redis.

`apply_async` costs half a millisecond and blocks; this is a template that Celery and kombu themselves made once, and one LPUSH that the
caller sends with others: `"LPUSH", queue.key, queue.message(generation_id)`.
The message's `v` is the version of its arguments, so that old and new workers can share a queue.
"""

import base64
from typing import Any, Final

from celery import Celery
from kombu import Connection
from kombu.utils.json import dumps

ARGUMENTS_VERSION = 1

BROKER_OPTIONS: Final[dict[str, Any]] = {
    # Early acknowledgement needs none of kombu's own bookkeeping, which triples the cost of a message.
    "ack_emulation": False,
    # One list, so that BRPOP waits for one key.
    "priority_steps": [0],
    # Without these a frozen Redis would hold up a shutdown for ever.
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 5,
}
"""How a worker talks to Redis through kombu; a broker that has gone unnoticed is missed within seconds."""

_ID = "<generation id>"
_BODY = "<base64 body>"


class TaskQueue:
    """One task on one Celery queue in Redis."""

    def __init__(self, app: Celery, task_name: str, queue: str) -> None:
        prefix: str = app.conf.broker_transport_options.get("global_keyprefix", "")
        self.key = prefix + queue
        message = _probe(app, task_name, queue)
        self._body = base64.b64decode(message["body"])
        message["body"] = _BODY
        message["properties"]["delivery_tag"] = _ID
        self._envelope = dumps(message).encode()

    def message(self, generation_id: str) -> bytes:
        """One message for the list `key`. The id (letters, digits, hyphens) is also the task's id and the delivery tag."""
        body = base64.b64encode(self._body.replace(_ID.encode(), generation_id.encode()))
        return self._envelope.replace(_ID.encode(), generation_id.encode()).replace(_BODY.encode(), body)


def _probe(app: Celery, task_name: str, queue: str) -> dict[str, Any]:
    """The message that `apply_async` would send, caught in kombu's in-memory transport."""
    with Connection("memory://") as connection:
        app.send_task(
            task_name,
            args=(_ID,),
            kwargs={"v": ARGUMENTS_VERSION},
            task_id=_ID,
            queue=queue,
            ignore_result=True,
            connection=connection,
        )
        channel: Any = connection.default_channel
        message: dict[str, Any] = channel.basic_get(queue, no_ack=True).serializable()
        return message
