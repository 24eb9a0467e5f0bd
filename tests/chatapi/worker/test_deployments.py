"""Which deployment serves next."""

import json
from collections import Counter

import pytest

from chatapi.models import Deployment, OnDisconnect, ServedModel
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.worker import deployments
from chatapi.worker.deployments import SANDBOX, Health, Route, able
from chatapi.worker.engines import Target


def route(name: str, weight: int = 1, priority: int = 0) -> Route:
    return Route(Target(engine="sandbox", name=name), weight, priority)


def names(routes: list[Route]) -> list[str]:
    return [each.target.name for each in routes]


def test_a_low_priority_number_comes_first() -> None:
    routes = [
        route("third", priority=9),
        route("first", priority=0, weight=1),
        route("second", priority=1, weight=1_000),
    ]
    assert names(Health().in_order(routes)) == ["first", "second", "third"]


def test_among_equals_the_weight_decides_how_often() -> None:
    routes = [route("heavy", weight=9), route("light", weight=1)]
    first = Counter(names(Health().in_order(routes))[0] for _ in range(2_000))
    # 1,800 expected; 13.4 is the standard deviation, so this fails once in 10^13 runs.
    assert 1_700 < first["heavy"] < 1_900


def test_one_that_failed_is_asked_last_until_it_has_cooled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    routes, health = [route("better"), route("worse", priority=1)], Health()
    health.failed(routes[0].target)
    assert names(health.in_order(routes)) == ["worse", "better"]
    monkeypatch.setattr(deployments, "COOL_DOWN_S", -1.0)
    health.failed(routes[0].target)
    assert names(health.in_order(routes)) == ["better", "worse"]


def test_without_deployments_there_is_no_order() -> None:
    assert Health().in_order([]) == []


REMOTE: dict[str, object] = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}


def asking(*content: dict[str, object]) -> GenerationRequest:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, *content]}],
    }
    return parse_chat(json.dumps(body).encode())


def test_addresses_of_pictures_go_only_where_they_are_allowed() -> None:
    careful, trusting = (
        route("careful"),
        Route(Target(engine="sandbox", name="trusting"), allows_remote_media=True),
    )
    assert names(able([careful, trusting], asking(REMOTE))) == ["trusting"]
    assert able([careful], asking(REMOTE)) == []
    assert names(able([careful, trusting], asking())) == ["careful", "trusting"]
    assert names(able([careful], parse_text(b'{"model":"m","prompt":"a"}'))) == ["careful"]


def test_the_sandbox_fetches_nothing_so_it_may_get_any_address() -> None:
    assert able([SANDBOX], asking(REMOTE)) == [SANDBOX]


@pytest.mark.django_db
def test_a_deployment_allows_remote_media_only_when_it_says_so() -> None:
    model = ServedModel.objects.create(id="served")
    Deployment.objects.create(model=model, name="a", engine="sandbox")
    Deployment.objects.create(model=model, name="b", engine="sandbox", allow_remote_media=True)
    assert [each.allows_remote_media for each in deployments.load()["served"]] == [False, True]


@pytest.mark.django_db
def test_it_loads_what_is_active() -> None:
    model = ServedModel.objects.create(id="org/served")
    Deployment.objects.create(
        model=model, name="one", engine="sandbox", weight=3, priority=2, timeouts={"connect_ms": 7}
    )
    Deployment.objects.create(model=model, name="off", engine="sandbox", is_active=False)
    hidden = ServedModel.objects.create(id="hidden", is_active=False)
    Deployment.objects.create(model=hidden, name="two", engine="sandbox")
    loaded = deployments.load()
    assert loaded.keys() == {"org/served"}
    (only,) = loaded["org/served"]
    assert (only.target.name, only.weight, only.priority, only.on_disconnect) == ("one", 3, 2, "cancel")
    assert (only.target.upstream_model, only.target.timeouts.connect_ms, only.target.timeouts.total_ms) == (
        "org/served",
        7,
        3_600_000,
    )


@pytest.mark.django_db
@pytest.mark.parametrize("on_disconnect", list(OnDisconnect))
def test_a_deployment_says_what_becomes_of_a_run_whose_client_leaves(on_disconnect: OnDisconnect) -> None:
    model = ServedModel.objects.create(id="served")
    Deployment.objects.create(model=model, name="one", engine="sandbox", on_disconnect=on_disconnect)
    assert deployments.load()["served"][0].on_disconnect is on_disconnect
