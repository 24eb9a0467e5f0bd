"""The tables of docs/scaling.md follow from the measured figures above them."""

import re
from math import ceil

import pytest

from bench import simulation
from bench.children import PROJECT_FOLDER

PAGE = (PROJECT_FOLDER / "docs" / "scaling.md").read_text()
SHARE = 2 / 3
"""The part of a core that a process is planned to use."""
TOKENS_PER_SECOND, TOKENS_PER_ANSWER = 20, 500


def figures(pattern: str) -> list[float]:
    """Return the numbers of the only place on the page that has these words."""
    (found,) = re.findall(pattern, PAGE)
    return [float(each.replace(",", "")) for each in ([found] if isinstance(found, str) else found)]


WORKER_START_MS, WEB_START_MS, WORKER_TOKEN_US, WEB_TOKEN_US = figures(
    r"worker ([\d.]+) ms, web ([\d.]+) ms a request; worker (\d+) µs, web (\d+) µs a token"
)
WORKER_STREAM_KB, WEB_STREAM_KB, VALKEY_STREAM_KB = figures(r"\d+ KB: worker (\d+), web (\d+), Valkey (\d+)")
WEB_MB, WORKER_MB = figures(r"web (\d+) MB, worker (\d+) MB, reaper")
(ENDED_KB,) = figures(r"9 to (\d+) KB, by the tokens in an entry")
(HEARTBEAT_US,) = figures(r"45 to (\d+) µs a stream")
(VALKEY_TOKENS,) = figures(r"([\d,]+) tokens a second \| a Valkey of its own")


def test_the_simulation_has_the_pages_costs() -> None:
    costs = [
        simulation.WEB_START_S, simulation.CLAIM_S + simulation.END_S,
        simulation.WEB_TOKEN_S, simulation.WORKER_TOKEN_S,
    ]  # fmt: skip
    measured = [WEB_START_MS / 1e3, WORKER_START_MS / 1e3, WEB_TOKEN_US / 1e6, WORKER_TOKEN_US / 1e6]
    assert costs == pytest.approx(measured)


def test_a_process_carries_two_thirds_of_a_core() -> None:
    worker = figures(r"([\d,]+) tokens a second, or ([\d,]+) starts a second; `CHATAPI_WORKER")
    web = figures(r"web process's\*\* \| ([\d,]+) tokens a second, or ([\d,]+) starts")
    costs = [(WORKER_TOKEN_US, WORKER_START_MS), (WEB_TOKEN_US, WEB_START_MS)]
    for (tokens, starts), (token_us, start_ms) in zip((worker, web), costs, strict=True):
        assert tokens == pytest.approx(SHARE / token_us * 1e6, rel=0.03)
        assert starts == pytest.approx(SHARE / start_ms * 1e3, rel=0.03)


def rows() -> list[tuple[int, list[str]]]:
    """Return the streams of each row of the table, and its other cells."""
    found = re.findall(
        r"^\| ([\d,]+)(?:, in two installations)? \| ([\d,]+, [\d,]+ \|.*) \|$", PAGE, re.MULTILINE
    )
    return [(int(streams.replace(",", "")), rest.split(" | ")) for streams, rest in found]


@pytest.mark.parametrize(("streams", "cells"), rows(), ids=[str(streams) for streams, _ in rows()])
def test_a_row_follows_from_the_figures(streams: int, cells: list[str]) -> None:
    rates, *numbers, memory, valkeys, valkey_memory, database = cells
    tokens, starts = streams * TOKENS_PER_SECOND, streams * TOKENS_PER_SECOND // TOKENS_PER_ANSWER
    assert rates == f"{tokens:,}, {starts:,}"
    workers = ceil((tokens * WORKER_TOKEN_US / 1e6 + starts * WORKER_START_MS / 1e3) / SHARE)
    webs = ceil((tokens * WEB_TOKEN_US / 1e6 + starts * WEB_START_MS / 1e3) / SHARE)
    assert [int(each) for each in numbers] == [workers, webs, workers + webs]
    processes_mb = workers * WORKER_MB + webs * WEB_MB
    assert_about(memory, processes_mb / 1e3 + streams * (WORKER_STREAM_KB + WEB_STREAM_KB) / 1e6)
    installations = 1 if streams < 100_000 else 2
    each = ceil(tokens / installations / VALKEY_TOKENS)
    assert valkeys == (f"{2 * each}: {each} in each" if installations == 2 else str(each))
    assert_about(valkey_memory, (streams * VALKEY_STREAM_KB + starts * 300 * ENDED_KB) / 1e6)
    heartbeat_s = 2 if streams < 10_000 else 10
    cores = ceil(starts * 0.002 + streams * HEARTBEAT_US / 1e6 / heartbeat_s)
    assert database.partition(":")[0] == f"{cores}, {3 * (workers + webs)}"


def assert_about(shown: str, gigabytes: float) -> None:
    """Fail unless the text is this number, rounded to two digits."""
    assert float(shown.removesuffix(" GB")) == pytest.approx(gigabytes, rel=0.03, abs=0.05)
