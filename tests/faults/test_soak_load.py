"""The load of a steady soak: half of what the service can do, however long it takes for each."""

import random
import threading
import time
from collections import Counter

import pytest

from tests.faults import soak_load
from tests.faults.soak_connections import Connections
from tests.faults.soak_load import Capacity, Load, Pace
from tests.faults.soak_visits import Heard, Visit

PLACES, VISIT_S = 8, 0.02
AT_ONCE = 30


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_load, "LOOK_S", (0.1, 0.5))
    monkeypatch.setattr(soak_load, "MEASURE_S", (0.1, 0.5))


def test_the_capacity_is_what_more_clients_do_not_raise() -> None:
    places = threading.Semaphore(PLACES)

    def visit(number: int, _: Connections) -> Visit:
        with places:
            time.sleep(VISIT_S)
        return Visit("reads", "five", str(number))

    load = Load(visit)
    capacity = load.capacity()
    most = PLACES / VISIT_S
    assert most * 0.5 < capacity.visits_per_second < most * 1.1
    assert capacity.clients < soak_load.MOST
    assert len({visit.prompt for visit in load.visits}) == len(load.visits)


def test_clients_that_are_refused_are_not_served() -> None:
    def visit(number: int, _: Connections) -> Visit:
        time.sleep(VISIT_S)
        codes = ["overloaded"] if number % 2 else ["upstream_timeout"]
        return Visit("reads", "five", str(number), [Heard(time.monotonic(), error_codes=codes)])

    load = Load(visit)
    with load.callers(PLACES):
        served = load._measure(PLACES, 0.1, 0.5).visits_per_second
    most = PLACES / VISIT_S / 2
    assert most * 0.5 < served < most * 1.1


def test_clients_come_at_half_of_the_capacity_whether_or_not_others_have_ended() -> None:
    together = threading.Barrier(AT_ONCE)

    def visit(number: int, _: Connections) -> Visit:
        if number < AT_ONCE:
            together.wait(20)
        return Visit("reads", "five", str(number))

    load = Load(visit)
    pace = load.keep_pace(Capacity(200, AT_ONCE, 1.0), 1, random.Random(3))
    assert pace.visits == len(load.visits) == pytest.approx(100, abs=30)
    assert pace.visits_per_second == 100


def test_a_load_that_comes_too_late_is_not_the_load_that_was_meant() -> None:
    in_time = Pace(Capacity(200, 96, 1.0), 100, 1_000, late=10, busy_part=0.5, errors=Counter())
    assert list(in_time.violations()) == []
    (said,) = in_time._replace(late=11).violations()
    assert said.startswith("11 of 1000 visits began more than 1 s late")


def test_an_error_of_the_service_is_noticed_where_nothing_is_broken() -> None:
    def visit(number: int, _: Connections) -> Visit:
        heard = Heard(time.monotonic(), error_codes=["upstream_timeout", "worker_lost"])
        return Visit("reads", "five", str(number), [heard])

    pace = Load(visit).keep_pace(Capacity(20, AT_ONCE, 1.0), 0.5, random.Random(3))
    assert pace.visits > 0
    assert list(pace.violations()) == [f"{pace.visits} clients got worker_lost, and nothing was broken"]
