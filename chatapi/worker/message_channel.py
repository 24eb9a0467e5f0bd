"""Kombu's Redis transport, which takes several messages with one read and shares slots among organizations.

Kombu asks for one message, handles it, and asks again: a tenth of a worker's processor time under load. Here
a script that takes more, up to `MAX_MESSAGES`, follows each blocking command in the same write, so that one
read returns them all. It takes none of an organization that has its share of the slots.
`chatapi/task_queue.py` has the queue's keys and their order, `slot_shares.py` the shares.
"""

from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import Any, Final

from kombu.transport import redis
from kombu.utils.json import loads
from redis.exceptions import NoScriptError

from accounts.redis_sentinel import ThreadSentinelConnection, TLSThreadSentinelConnection
from accounts.redis_urls import SentinelURLs
from chatapi.redis_client import Command
from chatapi.task_queue import sorted_sets, taking, wake_ups
from chatapi.worker.slot_shares import SlotShares

# The most messages of one read: with more, other workers that are idle would get fewer.
MAX_MESSAGES: Final = 8
# The wait at one queue while the other one may have messages. Redis reads 0 as for ever.
SHORT_WAIT_S: Final = 0.001
# The longest wait for a wake-up before the next look past messages of organizations that have their share.
# A slot that such an organization gives back stays free for up to this time.
LOOK_AGAIN_S: Final = 0.01
_TAKING: Final = ("EVAL", "EVALSHA")


class Channel(redis.Channel):
    """A channel that consumes one queue."""

    from_transport_options = (*redis.Channel.from_transport_options, "sentinels")
    sentinels: SentinelURLs | None = None
    """The URLs of the broker's sentinels; None if `CHATAPI_BROKER_URL` has none."""
    connection: Any
    connection_errors: Any
    _queue = ""
    _asked: tuple[str, ...] = ()
    _is_list_next = True
    _found_any = True
    _is_script_known = False

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """Return the arguments of the connections."""
        own: dict[str, Any] = {}
        if self.sentinels:
            own["sentinels"] = self.sentinels
            self.connection_class = ThreadSentinelConnection
            self.connection_class_ssl = TLSThreadSentinelConnection
        # The stub lacks it.
        return {**super()._connparams(asynchronous), **own}  # type: ignore[misc]

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for messages; called while at least one slot is free."""
        [self._queue] = self.active_queues
        free = self.connection.free_slots()
        most = min(MAX_MESSAGES, free)
        limits = self.connection.shares.limits(free, most)
        if 0 in limits.values():
            commands = self._looking(most, limits)
        else:
            commands = self._waiting(most, limits, timeout or self.brpop_timeout or 0)
        self._asked = tuple(str(name) for name, *_ in commands)
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command(connection.pack_commands(commands))

    def _waiting(self, most: int, limits: dict[str, int], wait_s: float) -> list[Command]:
        """Return commands that wait for a message: every organization may have at least one."""
        keys = sorted_sets(self._queue)
        if most > 1:
            # The script runs after the BZPOPMIN, which may have taken a message of any organization.
            rest = {organization: count - 1 for organization, count in limits.items()}
            wait_s = SHORT_WAIT_S if self._is_list_next else wait_s
            return [("BZPOPMIN", *keys, wait_s), self._taking(most - 1, rest)]
        if self._is_list_next:
            return [("BRPOP", self._queue, SHORT_WAIT_S)]
        return [("BZPOPMIN", *keys, wait_s)]

    def _looking(self, most: int, limits: dict[str, int]) -> list[Command]:
        """Return commands that look past messages of organizations with their share.

        No command waits for messages of the other organizations only, so a wake-up announces one to a worker.
        """
        take = self._taking(most, limits)
        if self._found_any:
            return [take]
        return [("BLPOP", wake_ups(self._queue), LOOK_AGAIN_S), take]

    def _taking(self, most: int, limits: dict[str, int]) -> Command:
        return taking(self._queue, most, limits, is_known=self._is_script_known)

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver the messages that came; raise `Empty` if none did before the timeout."""
        client, messages = self.client, list[bytes]()
        try:
            for name in self._asked:
                found = self._reply(**options)
                if name in _TAKING:
                    in_list, more = found or (0, [])
                    messages += more
                    self._is_list_next, self._is_script_known = in_list > 0, found is not None
                elif found and name != "BLPOP":
                    messages.append(found[1])
            if self._asked in (("BRPOP",), ("BZPOPMIN",)):
                # With a single slot, the list has every second turn.
                self._is_list_next = not self._is_list_next
        except self.connection_errors:
            client.connection.disconnect()  # the next iteration connects again
            raise
        finally:
            self._in_poll = None
        self._found_any = bool(messages)
        for message in messages:
            self.connection._deliver(loads(message), self._queue)
        if not messages:
            raise Empty
        return True

    def _reply(self, **options: Any) -> Any:
        """Return the next reply; None if Redis does not know the script, because it has started again."""
        try:
            return self.client.parse_response(self.client.connection, "EVAL", **options)
        except NoScriptError:
            return None


def transport(free_slots: Callable[[], int], shares: SlotShares) -> type[redis.Transport]:
    """Return a transport whose channels take no more messages than there are free slots.

    Of each organization they take at most what its share of the slots allows.
    """
    own = {"Channel": Channel, "free_slots": staticmethod(free_slots), "shares": shares}
    return type("Transport", (redis.Transport,), own)
