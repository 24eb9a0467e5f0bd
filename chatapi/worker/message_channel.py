"""Kombu's Redis transport, popping up to `MAX_MESSAGES` messages with one command.

Kombu asks for one message, handles it, and asks again: a tenth of a worker's processor time under load. Here
an RPOP follows each BRPOP in the same write, so that one read returns them all.
"""

from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import Any, Final

from kombu.transport import redis
from kombu.utils.json import loads

# The most messages of one read: with more, other workers that are idle would get fewer.
MAX_MESSAGES: Final = 8


class Channel(redis.Channel):
    """A channel that consumes one queue."""

    connection: Any
    connection_errors: Any
    _queue = ""
    _pops_more = False

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for messages; called while at least one slot is free."""
        [self._queue] = self.active_queues
        more = min(MAX_MESSAGES, self.connection.free_slots()) - 1
        self._pops_more = more > 0
        commands: list[tuple[Any, ...]] = [("BRPOP", self._queue, timeout or self.brpop_timeout or 0)]
        if self._pops_more:
            commands.append(("RPOP", self._queue, more))  # Redis executes it when the BRPOP is over
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command(connection.pack_commands(commands))

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver the messages that came; raise `Empty` if none did before the timeout."""
        client, messages = self.client, []
        try:
            if found := client.parse_response(client.connection, "BRPOP", **options):
                messages.append(found[1])
            if self._pops_more:
                messages += client.parse_response(client.connection, "RPOP", **options) or ()
        except self.connection_errors:
            client.connection.disconnect()  # the next iteration connects again
            raise
        finally:
            self._in_poll = None
        for message in messages:
            self.connection._deliver(loads(message), self._queue)
        if not messages:
            raise Empty
        return True


def transport(free_slots: Callable[[], int]) -> type[redis.Transport]:
    """Return a transport whose channels pop at most as many messages as `free_slots` returns."""
    own = {"Channel": Channel, "free_slots": staticmethod(free_slots)}
    return type("Transport", (redis.Transport,), own)
