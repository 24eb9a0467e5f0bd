"""The loop's clock, which stands still while the loop is blocked, and timeouts by this clock."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from accounts import loop_clock
from accounts.loop_clock import LoopClock, clock

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
BLOCKED_S = 1.5


def block(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)


@pytest.fixture
async def ticking() -> AsyncIterator[LoopClock]:
    clock.start(asyncio.get_running_loop())
    await asyncio.sleep(0.05)
    yield clock
    clock.stop()


async def test_it_stands_still_while_the_loop_is_blocked(ticking: LoopClock) -> None:
    began = loop_clock.monotonic()
    block(BLOCKED_S)
    assert loop_clock.monotonic() - began <= loop_clock.TICK_S + loop_clock.LATE_S
    await asyncio.sleep(0.3)
    assert 0.2 < loop_clock.monotonic() - began < 1


async def test_it_never_goes_back(ticking: LoopClock) -> None:
    read = [loop_clock.monotonic()]
    for blocked_s in (0, 0.6, 0.01, 0.7):
        block(blocked_s)
        read.append(loop_clock.monotonic())
        await asyncio.sleep(0)
        read.append(loop_clock.monotonic())
    assert read == sorted(read)


async def test_without_a_loop_that_ticks_it_is_the_usual_clock() -> None:
    assert loop_clock.monotonic() == pytest.approx(time.monotonic(), abs=0.1)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_an_answer_that_came_while_the_loop_was_blocked_is_in_time(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def ask() -> bytes:
        clock.start(asyncio.get_running_loop())
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            async with loop_clock.timeout(0.6):
                theirs.sendall(b"here")
                block(BLOCKED_S)
                return await reader.read(4)
        finally:
            clock.stop()
            writer.close()
            theirs.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(ask()) == b"here"


@pytest.mark.parametrize("new_loop", LOOPS)
def test_silence_is_a_timeout(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def wait() -> None:
        async with loop_clock.timeout(0.1):
            await asyncio.sleep(30)

    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(TimeoutError):
        runner.run(wait())


async def test_a_cancellation_passes() -> None:
    async def wait() -> None:
        async with loop_clock.timeout(0.1):
            await asyncio.sleep(30)

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_passes_also_when_the_time_is_over() -> None:
    async def wait() -> None:
        async with loop_clock.timeout(0.05):
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(wait())


async def test_what_was_in_time_is_not_cancelled_later() -> None:
    async with loop_clock.timeout(0.05):
        pass
    await asyncio.sleep(0.2)


async def test_the_inner_of_two_timeouts_is_distinguished_from_the_outer() -> None:
    async with loop_clock.timeout(30):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20), loop_clock.timeout(0.05):
                await asyncio.sleep(30)
        await asyncio.sleep(0)
