"""The floods of `bench.fairness` send what their names say, and its rule is about both percentiles."""

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

import msgspec
import pytest

from bench.behaviour import Behaviour
from bench.children import running
from bench.fairness import Round, is_within_bound
from bench.flood import ABSENT_MODEL
from bench.measurement import Measurement, Percentiles
from bench.scenarios import FLOODS, Flood
from bench.upstream import Counters, Request, UpstreamConnection

CALLERS = 4


class Recording(UpstreamConnection):
    """A connection that keeps the requests' bodies, and tells when there is one of each caller."""

    def __init__(self, bodies: list[bytes], have_all: asyncio.Event) -> None:
        super().__init__(Counters(), count(1))
        self.bodies, self.have_all = bodies, have_all

    def on_message_complete(self) -> None:
        self.bodies.append(self.body)
        if len(self.bodies) >= CALLERS:
            self.have_all.set()
        self.transport.abort()


async def sent_by(flood: str, folder: Path) -> list[bytes]:
    """Return the bodies of the first requests of a few callers."""
    bodies: list[bytes] = []
    have_all = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Recording(bodies, have_all), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    command = [sys.executable, "-m", "bench.flood", url, "--key", "none", "--flood", flood]
    with running("flood", [*command, "--callers", str(CALLERS)], folder, os.environ):
        async with server, asyncio.timeout(30):
            await have_all.wait()
    return bodies


async def requests_of(flood: str, folder: Path) -> list[Request]:
    return [msgspec.json.decode(body, type=Request) for body in await sent_by(flood, folder)]


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_the_upstream_knows_the_models_of_the_floods(flood: Flood) -> None:
    assert Behaviour.parse(flood.model).error_status is None


async def test_a_flood_of_prompts_sends_two_megabytes(tmp_path: Path) -> None:
    assert all(2_000_000 <= len(body) <= 2_001_000 for body in await sent_by("prompts", tmp_path))


async def test_a_flood_of_choices_streams_128(tmp_path: Path) -> None:
    assert {(request.n, request.stream) for request in await requests_of("choices", tmp_path)} == {
        (128, True)
    }


async def test_a_quarter_of_the_callers_of_a_flood_of_requests_is_refused(tmp_path: Path) -> None:
    requests = await requests_of("requests", tmp_path)
    assert ABSENT_MODEL in {request.model for request in requests}
    assert not any(request.stream for request in requests)


def measured(p50: float, p95: float) -> Measurement:
    times = Percentiles(p50, p95, p95)
    return Measurement("tok20-d100-f1", 1, 1, {}, 1, 1, times, times, None, {}, 0, 0, 1)


@pytest.mark.parametrize(
    ("p50", "p95", "is_within"), [(20, 40, True), (21, 40, False), (20, 41, False)], ids=str
)
def test_both_percentiles_may_double_and_no_more(p50: float, p95: float, is_within: bool) -> None:
    assert is_within_bound([Round(measured(10, 20), measured(p50, p95))]) is is_within
