"""Which deployment a request asks first, and how many ask one at the same time."""

import asyncio
import json
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

import pytest

from chatapi.fair_room import NoRoom
from chatapi.wire import requests
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.embeddings.request import parse as parse_embeddings
from chatapi.wire.protocols.messages.request import parse as parse_messages
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.upstream import upstream_errors
from chatapi.worker.deployments import SANDBOX, Route
from chatapi.worker.engines import Target
from chatapi.worker.routing import router as router_module
from chatapi.worker.routing.affinity import affinity_of
from chatapi.worker.routing.router import Place, Router


def route(name: str, weight: int = 1, priority: int = 0, max_concurrent: int | None = None) -> Route:
    target = Target(engine="scripted", name=name)
    return replace(
        SANDBOX,
        target=target,
        weight=weight,
        priority=priority,
        max_concurrent=max_concurrent,
        model="model",
    )


def names(routes: list[Route]) -> list[str]:
    return [each.target.name for each in routes]


def first(router: Router, *routes: Route) -> str:
    return router.in_order(routes)[0].target.name


async def entered(router: Router, asked: Route, organization_id: int = 1) -> Place:
    return (await router.place(asked, organization_id)).__enter__()


def test_a_low_priority_number_comes_first() -> None:
    routes = [
        route("third", priority=9),
        route("first", priority=0, weight=1),
        route("second", priority=1, weight=1_000),
    ]
    assert names(Router().in_order(routes)) == ["first", "second", "third"]


def test_among_equals_the_weight_decides_how_often() -> None:
    router, routes = Router(), [route("heavy", weight=9), route("light", weight=1)]
    counted = Counter(first(router, *routes) for _ in range(2_000))
    # 1,800 expected; 13.4 is the standard deviation, so this fails once in 10^13 runs.
    assert 1_700 < counted["heavy"] < 1_900


def test_without_deployments_there_is_no_order() -> None:
    assert Router().in_order([]) == []


async def test_the_one_with_the_fewest_in_flight_comes_first() -> None:
    router, routes = Router(), [route("one"), route("two"), route("three")]
    with ExitStack() as places:
        for asked in (*routes, *routes[:2]):
            places.enter_context(await router.place(asked, 1))
        assert {first(router, *routes) for _ in range(20)} == {"three"}
    assert {first(router, *routes) for _ in range(100)} == {"one", "two", "three"}


async def test_requests_in_flight_are_divided_by_weight() -> None:
    router, routes = Router(), [route("heavy", weight=200), route("light", weight=100)]
    asked = Counter[str]()
    with ExitStack() as places:
        for _ in range(30):
            best = router.in_order(routes)[0]
            asked[best.target.name] += 1
            places.enter_context(await router.place(best, 1))
    assert 19 <= asked["heavy"] <= 21


def test_one_that_is_ill_comes_last() -> None:
    router, routes = Router(), [route("better"), route("worse", priority=1)]
    key = routes[0].key
    router.health.failed(key, router.health.begin(key), upstream_errors.UNAVAILABLE)
    assert names(router.in_order(routes)) == ["worse", "better"]


async def test_one_that_is_flaky_comes_after_all_but_those_that_are_full_or_ill() -> None:
    router, (flaky, well, full, ill) = (
        Router(),
        [route("flaky"), route("well", priority=1), route("full", max_concurrent=1), route("ill")],
    )
    for _ in range(2):
        router.health.failed(flaky.key, router.health.begin(flaky.key), upstream_errors.UPSTREAM_FAILED)
    router.health.failed(ill.key, router.health.begin(ill.key), upstream_errors.UNAVAILABLE)
    with await router.place(full, 1):
        assert names(router.in_order([ill, full, flaky, well])) == ["well", "flaky", "full", "ill"]


# ---- affinity


def test_requests_of_one_affinity_go_to_the_same_deployment_and_others_elsewhere() -> None:
    router, routes = Router(), [route("heavy", weight=3), route("light", weight=1)]
    homes: dict[int, str] = {}
    for number in range(2_000):
        affinity = number.to_bytes(16)
        (home,) = {router.in_order(routes, affinity)[0].target.name for _ in range(3)}
        homes[number] = home
        assert router.in_order(routes[::-1], affinity)[0].target.name == home
    # 1,500 expected; the standard deviation is 19.
    assert 1_400 < Counter(homes.values())["heavy"] < 1_600


def test_one_deployment_less_moves_only_its_own_requests() -> None:
    router, routes = Router(), [route(name) for name in ("one", "two", "three")]
    for number in range(200):
        before = names(router.in_order(routes, number.to_bytes(16)))
        after = names(
            router.in_order([each for each in routes if each.target.name != "two"], number.to_bytes(16))
        )
        assert after == [name for name in before if name != "two"]


async def test_affinity_yields_to_health_and_to_a_crowd() -> None:
    router, routes = Router(), [route("one"), route("two"), route("three")]
    affinity = b"a conversation"
    home = router.in_order(routes, affinity)[0]
    with ExitStack() as places:
        for _ in range(3):
            places.enter_context(await router.place(home, 1))
        assert router.in_order(routes, affinity)[0] == home
        for _ in range(30):
            places.enter_context(await router.place(home, 1))
        assert router.in_order(routes, affinity)[-1] == home
    router.health.failed(home.key, router.health.begin(home.key), upstream_errors.UNAVAILABLE)
    assert router.in_order(routes, affinity)[-1] == home


LONG = "word " * 1_000


def chat(*messages: tuple[str, str], **parameters: str) -> GenerationRequest:
    body = {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages]}
    return parse_chat(json.dumps(body | parameters).encode())


def affinity(request: GenerationRequest, organization_id: int = 1) -> bytes | None:
    return affinity_of(request, organization_id, len(requests.to_bytes(request)))


@pytest.mark.parametrize("begin", [
    [("system", LONG), ("user", "hello")],
    [("system", "Be brief."), ("user", LONG)],
    [("user", LONG)],
])  # fmt: skip
def test_a_conversation_keeps_its_affinity_as_it_grows(begin: list[tuple[str, str]]) -> None:
    home = affinity(chat(*begin))
    assert home is not None
    assert affinity(chat(*begin, ("assistant", "hi"), ("user", "how are you?"))) == home
    assert affinity(chat(*begin), organization_id=2) != home


@pytest.mark.parametrize(("before", "is_shared"), [
    ([LONG], True),
    (["Be brief.", LONG], True),
    (["é" * 2_048], True),
    (["e" * 4_095], False),
    (["Be brief."], False),
])  # fmt: skip
def test_questions_share_the_affinity_of_a_long_system_prompt(before: list[str], is_shared: bool) -> None:
    system = [("system", text) for text in before]
    one, two = (affinity(chat(*system, ("user", question + LONG))) for question in ("hello", "good day"))
    assert (one == two) is is_shared


def test_a_conversation_of_claude_code_keeps_its_affinity() -> None:
    def asked(cch: str) -> GenerationRequest:
        system = [f"x-anthropic-billing-header: cc_version=2.1.77.a8f; cc_entrypoint=cli; cch={cch};", LONG]
        body = {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": text} for text in system],
            "messages": [{"role": "user", "content": "hello"}],
        }
        return parse_messages(json.dumps(body).encode())

    assert affinity(asked("fa690")) == affinity(asked("b81c2")) is not None


def test_a_cache_key_is_an_affinity_for_any_prompt() -> None:
    one, two = (chat(("user", text), prompt_cache_key="mine") for text in ("hello", LONG))
    assert affinity(one) == affinity(two) is not None
    assert affinity(chat(("user", "hello"), prompt_cache_key="yours")) != affinity(one)


def test_what_is_too_short_to_be_cached_has_no_affinity() -> None:
    assert affinity(chat(("user", "hello"))) is None


def test_a_text_has_its_beginning_as_affinity_and_embeddings_have_none() -> None:
    one, two = (parse_text(json.dumps({"model": "m", "prompt": LONG + end}).encode()) for end in ("a", "b"))
    assert affinity(one) == affinity(two) is not None
    embedding = parse_embeddings(json.dumps({"model": "m", "input": LONG}).encode())
    assert affinity(embedding) is None


def test_the_affinity_of_the_largest_prompt_takes_no_time() -> None:
    largest = chat(*[("system", "x" * 100_000)] * 80)
    began_at = time.process_time()
    for _ in range(100):
        affinity_of(largest, 1, 8_000_000)
    assert (time.process_time() - began_at) / 100 < 0.001


# ---- max_concurrent


async def test_one_thatis_full_comes_after_those_with_room() -> None:
    router, small, spare = Router(), route("small", max_concurrent=2), route("spare", priority=1)
    places = [await entered(router, small) for _ in range(2)]
    assert first(router, small, spare) == "spare"
    places[0].__exit__()
    assert first(router, small, spare) == "small"


async def test_a_request_waits_for_room_and_organizations_take_turns() -> None:
    router, only = Router(), route("only", max_concurrent=1)
    held = await entered(router, only)
    order: list[int] = []

    async def ask(organization_id: int) -> None:
        with await router.place(only, organization_id):
            order.append(organization_id)

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for organization_id in (1, 1, 1, 2):
            tasks.create_task(ask(organization_id))
        await asyncio.sleep(0)
        assert order == []
        held.__exit__()
    assert order == [1, 2, 1, 1]
    assert router.in_flight[only.key] == 0


async def test_the_queue_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "MAX_ROOM_WAIT_S", 0.01)
    monkeypatch.setattr(router_module, "MAX_WAITING_EACH", 1)
    router, only = Router(), route("only", max_concurrent=1)
    await entered(router, only)
    waiting = asyncio.create_task(router.place(only, 1))
    await asyncio.sleep(0)
    with pytest.raises(NoRoom, match="too many"):
        await router.place(only, 1)
    with pytest.raises(NoRoom, match="too long"):
        await waiting


@pytest.mark.parametrize(("workers", "rooms"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (7, [1] * 7)])
async def test_workers_divide_the_room(workers: int, rooms: list[int]) -> None:
    only = route("only", max_concurrent=5)
    found = []
    for rank in range(workers):
        router = Router()
        router.know_workers(workers, rank)
        found.append(0)
        while not router.is_full(only):
            await entered(router, only)
            found[-1] += 1
    assert found == rooms
