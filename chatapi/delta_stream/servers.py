"""The servers of streams: each generation is on one of them, whose number is the last digit of its id.

So an id names its server, and adding a server at the end of the list moves no generation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar
from uuid import UUID

from chatapi import identity
from chatapi.delta_stream.errors import StreamUnavailable, in_time
from chatapi.delta_stream.interface import DeltaStream, Signs
from chatapi.delta_stream.jobs import Cancellation

Part = TypeVar("Part")
Answer = TypeVar("Answer")

# How long each server may take to answer a question to all servers.
ANSWER_S = 1.0


class ByServer(Generic[Part]):
    """One object of this process for each server of streams: a connection, a reader, …"""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def of(self, generation_id: UUID) -> Part:
        """Return the part for the generation's server.

        Raises `StreamUnavailable` if this process's list does not have the server yet.
        """
        if len(self._parts) == 1:  # ids of the release before end with any digit
            return self._parts[0]
        number = identity.server_number(generation_id)
        if number >= len(self._parts):
            raise StreamUnavailable(f"CHATAPI_STREAMS_URL has no server {number}")
        return self._parts[number]


class StreamServers(ByServer[DeltaStream]):
    """The streams of all servers, and questions to all of them.

    A process that is connected to any server lives. A question raises `StreamUnavailable` only if no server
    answers.
    """

    def __init__(self, parts: Sequence[DeltaStream]) -> None:
        super().__init__(parts)
        self._known_to: dict[str, set[DeltaStream]] = {}
        """The servers on which a process was seen, by its inbox."""

    async def signs_of_life(self, inboxes: Sequence[str]) -> Signs:
        """Return the signs of life of the processes that read these inboxes.

        While a server is added to the list, only the other servers know a process with the older list. If
        they do not answer, the new server's answer says nothing about it.
        """
        answered: set[DeltaStream] = set()
        known_to = {name: self._known_to.get(name, set()) for name in inboxes}

        async def of(stream: DeltaStream) -> Signs:
            found = await stream.signs_of_life(inboxes)
            answered.add(stream)
            for name in found.heard | found.connected:
                known_to[name].add(stream)
            return found

        found = await self._ask(of)
        self._known_to = known_to
        return Signs(
            set().union(*(each.heard for each in found)),
            set().union(*(each.connected for each in found)),
            frozenset(name for name, servers in known_to.items() if servers and servers.isdisjoint(answered)),
        )

    async def connected_workers(self) -> set[str]:
        """Return the names of all workers that listen for cancellations."""
        return set().union(*await self._ask(lambda stream: stream.connected_workers()))

    async def cancelled_among(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        """Return those that are cancelled, except on servers that do not answer."""

        async def among_own(stream: DeltaStream) -> Mapping[UUID, Cancellation]:
            own = [generation_id for generation_id in ids if self.of(generation_id) is stream]
            return await stream.cancelled_among(own) if own else {}

        found = await self._ask(among_own)
        return {generation_id: why for each in found for generation_id, why in each.items()}

    async def _ask(self, question: Callable[[DeltaStream], Awaitable[Answer]]) -> list[Answer]:
        """Return the answers of the servers that answer. Raises `StreamUnavailable` if none does."""
        if len(self) == 1:
            return [await question(self._parts[0])]
        found = await asyncio.gather(*(_in_time(question(each)) for each in self), return_exceptions=True)
        errors = [each for each in found if isinstance(each, BaseException)]
        for error in errors:
            if len(errors) == len(found) or not isinstance(error, StreamUnavailable):
                raise error
        return [each for each in found if not isinstance(each, BaseException)]


async def _in_time(answering: Awaitable[Answer]) -> Answer:
    async with in_time(ANSWER_S):
        return await answering
