"""What runs have taken from rate limits, where the web process that took it is gone: the worker keeps it, and
gives it back.
"""

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from accounts.rate_limits import RateLimits, Taken
from chatapi.worker.runs.run import Run
from usage.pricing import Tokens

REMEMBERED_S = 12.0
"""How long after a run's end it may turn out that its web process has died: that asks the books every 5 s, so
it may die as late without having given back; its key lapses up to 3 s later, and the next sweep is a
heartbeat after that.
"""


class _Ended(NamedTuple):
    at: float
    inbox: str
    taken: Taken
    used_tokens: int


class LeftBehind:
    """Of one worker process. Who is mistaken about a web process does no harm: nothing is given back twice."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._ended: list[_Ended] = []

    @property
    def inboxes(self) -> set[str]:
        """Of the web processes that should have given back by themselves."""
        return {each.inbox for each in self._ended if each.inbox}

    def end(self, run: Run, used: Tokens) -> None:
        """A run has ended, and used so much."""
        if run.taken is not None:
            self._ended.append(
                _Ended(time.monotonic(), run.inbox, run.taken, used.prompt_tokens + used.completion_tokens)
            )

    async def sweep(self, running: Sequence[Run], absent: Collection[str]) -> None:
        """Keep the places of what runs for one of the `absent` inboxes or for none; give back what has ended.
        Raises `RedisError`.
        """
        gone = {"", *absent}
        left = [run.taken for run in running if run.taken is not None and run.inbox in gone]
        # Its lease may have ended while it was queued: nobody renewed it then.
        await self._limits.renew(left)
        for each in [each for each in self._ended if each.inbox in gone]:
            await self._limits.give_back(each.taken, each.used_tokens)
            self._ended.remove(each)
        oldest = time.monotonic() - REMEMBERED_S
        self._ended = [each for each in self._ended if each.at > oldest]

    async def close(self) -> None:
        """The process ends: give back all that it remembers, for a web process may not live to. Raises
        `RedisError`.
        """
        await self.sweep([], self.inboxes)
