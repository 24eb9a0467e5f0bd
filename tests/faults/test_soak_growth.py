"""A soak without faults notices what grows."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection

from chatapi.serving import embedded_valkey
from tests.faults.soak_growth import LEAST, Growth, Sample, Trend, grown
from tests.installation import Installation, wait_for

MINUTES, SAMPLES_PER_MINUTE = 30, 30


def run_of(value: Callable[[float], float]) -> list[Sample]:
    """Return the samples of half an hour."""
    minutes = (number / SAMPLES_PER_MINUTE for number in range(MINUTES * SAMPLES_PER_MINUTE + 1))
    return [(minute, value(minute)) for minute in minutes]


def rising(per_minute: float) -> Callable[[float], float]:
    """Return a value that grows evenly."""
    return lambda minute: 200 + per_minute * minute


def saw_tooth(minute: float, *, period: float, begins_at: float = 0.0, height: float = 12.0) -> float:
    """Return the memory of a process that gives back what it took, once in a period of minutes."""
    return 150 + height * ((minute / period + begins_at) % 1)


@pytest.mark.parametrize("figure", LEAST)
def test_a_figure_that_grows_beyond_its_bound_is_named(figure: str) -> None:
    least = LEAST[figure]
    gains = (least * 0.99, least * 1.01)
    quiet, growing = ({("web", figure): Trend.of(run_of(rising(gain / 20)), least)} for gain in gains)
    assert grown(quiet) == []
    (said,) = grown(growing)
    assert said.startswith(f"web: {figure} grows by {least * 1.01 / 20:.3f} a minute")


def test_what_grows_during_the_warm_up_only_is_no_growth() -> None:
    trend = Trend.of(run_of(lambda minute: 100 + 5 * min(minute, 10)), LEAST["memory MB"])
    assert not trend.has_grown
    assert (trend.middle, trend.most) == (150, 150)


@pytest.mark.parametrize("period", [0.3, 0.7, 1, 1.5, 2, 3, 5, 7])
@pytest.mark.parametrize("begins_at", [0.0, 0.25, 0.5, 0.75])
def test_a_saw_tooth_is_no_growth_and_a_leak_below_it_is(period: float, begins_at: float) -> None:
    def tooth(minute: float) -> float:
        return saw_tooth(minute, period=period, begins_at=begins_at)

    assert not Trend.of(run_of(tooth), LEAST["memory MB"]).has_grown
    assert Trend.of(run_of(lambda minute: tooth(minute) + minute), LEAST["memory MB"]).has_grown


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_of_a_megabyte_a_minute_is_noticed_in_noise_and_noise_is_not(seed: int) -> None:
    chance = random.Random(seed)
    noise = [chance.gauss(0, 6) for _ in range(MINUTES * SAMPLES_PER_MINUTE + 1)]

    def noisy(minute: float) -> float:
        return 150 + noise[round(minute * SAMPLES_PER_MINUTE)]

    assert not Trend.of(run_of(noisy), LEAST["memory MB"]).has_grown
    trend = Trend.of(run_of(lambda minute: noisy(minute) + minute), LEAST["memory MB"])
    assert trend.has_grown
    assert trend.per_minute == pytest.approx(1, abs=trend.bound)


def test_one_connection_a_minute_that_stays_open_is_noticed() -> None:
    trend = Trend.of(run_of(lambda minute: 30 + int(minute)), LEAST["connections"])
    assert trend.has_grown


def test_samples_are_taken_of_each_process_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.soak_growth.SAMPLE_S", 0.01)
    with Installation(tmp_path) as installation:
        installation.start_valkey()
        installation.run("web", ["sleep", "60"])
        url = f"unix://{embedded_valkey.socket_path(tmp_path)}"
        growth = Growth(installation, {"valkey": url, "same": url})
        growth.watch()
        wait_for(lambda: len(growth._samples["same", "keys"]) > 10, "samples")
        trends = growth.stop()
    of_processes = {(name, figure) for name in ("web", "valkey") for figure in ("memory MB", "descriptors")}
    of_valkeys = {(name, figure) for name in ("valkey", "same") for figure in ("connections", "keys")}
    of_database = {("postgresql", "connections")} if connection.vendor == "postgresql" else set()
    assert set(trends) == of_processes | of_valkeys | of_database
    assert trends["valkey", "connections"].most == 2
    assert trends["web", "memory MB"].most > 0
