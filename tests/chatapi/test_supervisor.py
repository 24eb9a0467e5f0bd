"""What dies is started again, ever more slowly; what is stopped ends, gently or not."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from chatapi.serving.supervisor import Program, Supervisor


@pytest.fixture
async def supervisor(said: list[str]) -> AsyncIterator[Supervisor]:
    """Writes what it says into `said`; its signals are put back afterwards."""
    made = Supervisor(said.append)
    yield made
    await made.stop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(number)


@pytest.fixture
def said() -> list[str]:
    return []


def shell(script: str, stop_s: float = 10) -> Program:
    return Program("it", ["sh", "-c", script], stop_s)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_ends_is_started_again_ever_more_slowly(supervisor: Supervisor, said: list[str]) -> None:
    await supervisor.start(shell("exit 3"))
    await until(lambda: len(said) == 3)
    assert said == [
        f"it ended with exit code 3; it is started again in {delay} s." for delay in ("0.2", "0.4", "0.8")
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 5])
async def test_what_dies_is_started_again_though_nothing_can_be_said(
    supervisor: Supervisor, tmp_path: Path, number: int
) -> None:
    """The output is a closed pipe or a full disk, and some signals have no name."""

    def fail(text: str) -> None:
        raise OSError(28, "No space left on device")

    supervisor._say, starts = fail, tmp_path / "starts"
    await supervisor.start(shell(f"echo $$ >> {starts}; exec sleep 100"))
    await until(lambda: starts.exists() and len(starts.read_text().split()) == 1)
    os.kill(int(starts.read_text()), number)
    await until(lambda: len(starts.read_text().split()) == 2)


async def test_what_waits_for_its_next_start_can_be_stopped(supervisor: Supervisor, said: list[str]) -> None:
    await supervisor.start(shell("kill -9 $$"))
    await until(lambda: said == ["it was killed by SIGKILL; it is started again in 0.2 s."])
    assert await supervisor.stop() == 0


async def test_the_one_started_last_is_stopped_first(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("first", "second"):
        await supervisor.start(
            shell(
                f"trap 'echo {name} >> {log}; exit' TERM; touch {tmp_path}/{name}; "
                "while :; do sleep 0.02; done"
            )
        )
        await until((tmp_path / name).exists)
    assert await supervisor.stop() == 0
    assert log.read_text().split() == ["second", "first"]


async def test_those_of_one_call_are_stopped_together(supervisor: Supervisor, tmp_path: Path) -> None:
    """Each waits for the other one's end, so one after the other they would never end."""
    wait_for = (
        "trap 'touch {mine}; while [ ! -e {other} ]; do sleep 0.02; done; exit' TERM; touch {mine}.on; "
    )
    first, second = tmp_path / "first", tmp_path / "second"
    loop = "while :; do sleep 0.02; done"
    await supervisor.start(
        shell(wait_for.format(mine=first, other=second) + loop),
        shell(wait_for.format(mine=second, other=first) + loop),
    )
    await until(lambda: (tmp_path / "first.on").exists() and (tmp_path / "second.on").exists())
    assert await supervisor.stop() == 0
    assert first.exists()
    assert second.exists()


async def test_what_does_not_end_in_time_is_killed(
    supervisor: Supervisor, said: list[str], tmp_path: Path
) -> None:
    await supervisor.start(
        shell(f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.02; done", stop_s=0.1)
    )
    await until((tmp_path / "ready").exists)
    assert await supervisor.stop() == 0
    assert said == ["it did not end within 0.1 s and is killed."]


async def test_a_second_signal_kills_what_still_ends(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.start(
        shell(f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.02; done", stop_s=600)
    )
    await until((tmp_path / "ready").exists)
    os.kill(os.getpid(), signal.SIGTERM)
    await supervisor.until_stopped()
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
    assert await supervisor.stop() == 1


async def test_under_nohup_it_outlives_its_terminal(said: list[str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor = Supervisor(said.append)
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        assert not supervisor.is_stopping
    finally:
        await supervisor.stop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)


async def test_nothing_is_started_after_a_signal(supervisor: Supervisor, tmp_path: Path) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await supervisor.until_stopped()
    await supervisor.start(shell(f"touch {tmp_path}/started"))
    await supervisor.unless_stopped(asyncio.sleep(600))
    assert await supervisor.stop() == 0
    assert not (tmp_path / "started").exists()


async def test_programs_give_the_memory_of_large_requests_back(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of malloc do this; the operator's own settings replace them."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    found = tmp_path / "environment"
    await supervisor.start(shell(f"env > {found}.new; mv {found}.new {found}; exec sleep 60"))
    await until(found.exists)
    lines = found.read_text().splitlines()
    assert {"MALLOC_MMAP_THRESHOLD_=524288", "MALLOC_TRIM_THRESHOLD_=1"} <= set(lines)
