"""The inboxes of a web process: one on each server of streams, all with the same name."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Self
from uuid import UUID

from chatapi import identity
from chatapi.concurrency import retry
from chatapi.delta_stream import ByServer, StreamServers, StreamUnavailable
from chatapi.fair_turns import FairTurns
from chatapi.web.following.inbox import Inbox

log = logging.getLogger(__name__)

# The pause between attempts to begin at a server that was away when the process started.
RETRY_S = 1.0


class Inboxes(ByServer[Inbox]):
    """The readers of all servers, which also know which servers answer."""

    def __init__(self, inboxes: Sequence[Inbox]) -> None:
        super().__init__(inboxes)
        self.name = inboxes[0].name
        self._late: list[asyncio.Task[None]] = []

    @classmethod
    def of_streams(cls, streams: StreamServers, turns: FairTurns, *, tick_s: float) -> Self:
        """Return the inboxes of a new process on these servers."""
        name = secrets.token_hex(8)
        return cls([Inbox(stream, name, turns=turns, tick_s=tick_s) for stream in streams])

    @property
    def open_count(self) -> int:
        return sum(inbox.open_count for inbox in self)

    def place(self, generation_id: UUID) -> UUID:
        """Return the id with the number of a server that answers, for a generation that is to begin."""
        if len(self) == 1:
            return generation_id
        answering = [number for number, inbox in enumerate(self) if inbox.is_answering]
        return identity.on_one_of(answering or range(len(self)), generation_id)

    async def start(self) -> None:
        """Begin to read at all servers; raises `StreamUnavailable` if none is there."""
        errors = await asyncio.gather(*(inbox.start() for inbox in self), return_exceptions=True)
        for error in filter(None, errors):
            if all(errors) or not isinstance(error, StreamUnavailable):
                raise error
        self._late = [
            asyncio.create_task(
                retry(partial(_start, inbox), itertools.repeat(RETRY_S), (StreamUnavailable,))
            )
            for inbox, error in zip(self, errors, strict=True)
            if error is not None
        ]

    async def stop(self) -> None:
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, *(inbox.stop() for inbox in self), return_exceptions=True)

    def wake_all(self) -> None:
        for inbox in self:
            inbox.wake_all()


async def _start(inbox: Inbox) -> None:
    """Begin to read; log the failure of an attempt."""
    try:
        await inbox.start()
    except StreamUnavailable as error:
        log.warning("inbox: %r", error)
        raise
