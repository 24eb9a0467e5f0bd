"""Kombu's Redis transport, popping up to `MAX_MESSAGES` messages with one command.

Kombu asks for one message, handles it, and asks again: a tenth of a worker's processor time under load. Here
a script that pops more follows each blocking command in the same write, so that one read returns them all.
`chatapi/task_queue.py` has the queue's keys and their order.
"""

from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import Any, Final

from kombu.transport import redis
from kombu.utils.json import loads

from chatapi.task_queue import POP, sorted_sets

# The most messages of one read: with more, other workers that are idle would get fewer.
MAX_MESSAGES: Final = 8
# The wait for a message in turn while the list has any: Redis takes 0 for ever.
SHORT_WAIT_S: Final = 0.001


class Channel(redis.Channel):
    """A channel that consumes one queue."""

    connection: Any
    connection_errors: Any
    _queue = ""
    _pops_more = False
    _is_list_next = True

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for messages; called while at least one slot is free."""
        [self._queue] = self.active_queues
        more = min(MAX_MESSAGES, self.connection.free_slots()) - 1
        self._pops_more = more > 0
        keys, wait_s = sorted_sets(self._queue), timeout or self.brpop_timeout or 0
        commands: list[tuple[Any, ...]]
        if self._pops_more:
            wait_s = SHORT_WAIT_S if self._is_list_next else wait_s
            # Redis executes the script when the BZPOPMIN is over.
            commands = [("BZPOPMIN", *keys, wait_s), ("EVAL", POP, 3, *keys, self._queue, more)]
        elif self._is_list_next:
            commands = [("BRPOP", self._queue, SHORT_WAIT_S)]
        else:
            commands = [("BZPOPMIN", *keys, wait_s)]
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command(connection.pack_commands(commands))

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver the messages that came; raise `Empty` if none did before the timeout."""
        client, messages = self.client, []
        try:
            if found := client.parse_response(client.connection, "EVAL", **options):
                messages.append(found[1])
            if self._pops_more:
                in_list, more = client.parse_response(client.connection, "EVAL", **options)
                messages += more
                self._is_list_next = in_list > 0
            else:  # with a single slot, the list has every second turn
                self._is_list_next = not self._is_list_next
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
