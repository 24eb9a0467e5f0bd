"""The bound on one organization's generations that wait or run: 429 for it, and nothing for the others."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from chatapi.errors import APIError
from chatapi.web import open_generations
from chatapi.web.open_generations import OpenGenerations
from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for
from usage.errors import DatabaseUnavailable

ALICE, BOB = 1, 2
LONG = [{"role": "user", "content": "[sandbox tokens=2 delay_ms=60000]"}]


class Books:
    """The number of open generations of each organization, and how often it was asked for."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.reads = 0

    async def count(self) -> dict[int, int]:
        self.reads += 1
        return dict(self.open)


async def test_an_organization_far_below_its_bound_costs_no_count() -> None:
    books = Books()
    ours = OpenGenerations(books.count, most=10)
    for _ in range(5):
        await ours.add(ALICE)
        await ours.add(BOB)
    assert books.reads == 0


async def test_only_the_organization_at_its_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_generations, "MAX_COUNT_AGE_S", 60)
    books = Books()
    books.open = {ALICE: 10, BOB: 9}
    ours = OpenGenerations(books.count, most=10)
    for organization in (ALICE, BOB):  # what was admitted by other processes is known once it is counted
        for _ in range(5):
            await ours.add(organization)
    for _ in range(3):
        with pytest.raises(APIError) as refused:
            await ours.add(ALICE)
        assert (refused.value.failure.status, refused.value.failure.retry_after_ms) == (429, 1_000)
    await ours.add(BOB)
    with pytest.raises(APIError):
        await ours.add(BOB)
    assert books.reads == 1, "refusals in the same moment share a count"


async def test_an_ended_generation_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_generations, "MAX_COUNT_AGE_S", 0)
    books = Books()
    books.open = {ALICE: 10}
    ours = OpenGenerations(books.count, most=2)
    await ours.add(ALICE)
    with pytest.raises(APIError):
        await ours.add(ALICE)
    books.open = {}
    await ours.add(ALICE)


async def test_what_was_admitted_is_not_forgotten_when_a_count_fails() -> None:
    async def failing_count() -> dict[int, int]:
        raise DatabaseUnavailable

    ours = OpenGenerations(failing_count, most=10)
    for _ in range(5):
        await ours.add(ALICE)
    for _ in range(2):  # none passes uncounted
        with pytest.raises(DatabaseUnavailable):
            await ours.add(ALICE)


async def test_many_refused_callers_come_back_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_generations, "monotonic", lambda: 1_000.0)
    books = Books()
    books.open = {ALICE: 1, BOB: 1}
    ours = OpenGenerations(books.count, most=1)

    async def retry_after_ms(organization: int) -> int | None:
        with pytest.raises(APIError) as refused:
            await ours.check(organization)
        return refused.value.failure.retry_after_ms

    times = [await retry_after_ms(ALICE) for _ in range(7_000)]
    assert times[:200] == [1_000] * 200, "a few may come back together"
    assert times[200:210] == [1_005 + 5 * late for late in range(10)]
    assert times[5_999:] == [30_000] * 1_001, "nobody has to wait longer"
    assert await retry_after_ms(BOB) == 1_000, "who waits is of the same organization"


async def test_as_many_may_wait_for_the_process_as_may_be_open() -> None:
    ours = OpenGenerations(Books().count, most=2)
    with ours.arriving(ALICE), ours.arriving(BOB):
        with ours.arriving(ALICE):
            with pytest.raises(APIError) as refused, ours.arriving(ALICE):
                pass
            assert (refused.value.failure.status, refused.value.failure.retry_after_ms) == (429, 1_000)
            repeat = partial(ours.arriving, ALICE, may_repeat=True)
            with repeat(), repeat(), pytest.raises(APIError), repeat():
                pass
            with ours.arriving(BOB):
                pass
        with ours.arriving(ALICE):
            pass


@pytest.mark.xdist_group("installation")
@pytest.mark.timeout(120)
def test_the_refusal_has_a_time_to_come_back_and_others_are_served(installation: Installation) -> None:
    keys = [installation.create_key("--organization", name, "--test") for name in ("Greedy", "Modest")]
    with installation.another_web(CHATAPI_MAX_OPEN_GENERATIONS="1") as web, ExitStack() as stack:
        ours, other = [Client(web.url, key) for key in keys]
        request: dict[str, Any] = {"messages": LONG, "stream": True, "idempotency_key": "once"}
        running = stack.enter_context(ours.asking("sandbox", **request))
        assert next(running.texts())
        wait_for(lambda: ours.complete("sandbox").status == 429, "the refusal")
        refused = ours.complete("sandbox")
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        assert ours.send("POST", "/v1/chat/completions", b"no JSON").status == 429, "it is not read before"
        repeated = stack.enter_context(ours.asking("sandbox", **request))
        assert next(repeated.texts()), "it needs no room"
        assert other.complete("sandbox").status == 200
