"""Which deployments there are, and which of them may receive a request."""

import json
from dataclasses import replace

import pytest

from chatapi.models import Deployment, OnDisconnect, ServedModel
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.worker import deployments
from chatapi.worker.deployments import SANDBOX, Route, able
from chatapi.worker.engines import Target


def route(name: str, *, engine: str = "sandbox", allows_remote_media: bool = False) -> Route:
    target = Target(engine=engine, name=name)
    return replace(SANDBOX, target=target, allows_remote_media=allows_remote_media)


def names(routes: list[Route]) -> list[str]:
    return [each.target.name for each in routes]


REMOTE: dict[str, object] = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
FUNCTION: dict[str, object] = {"type": "function", "function": {"name": "f"}}
CUSTOM: dict[str, object] = {"type": "custom", "custom": {"name": "c"}}
ALLOWED: dict[str, object] = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}}


def asking(*content: dict[str, object], **parameters: object) -> GenerationRequest:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, *content]}],
        **parameters,
    }
    return parse_chat(json.dumps(body).encode())


def test_addresses_of_pictures_go_only_where_they_are_allowed() -> None:
    careful, trusting = route("careful"), route("trusting", allows_remote_media=True)
    assert names(able([careful, trusting], asking(REMOTE))) == ["trusting"]
    assert able([careful], asking(REMOTE)) == []
    assert names(able([careful, trusting], asking())) == ["careful", "trusting"]
    assert names(able([careful], parse_text(b'{"model":"m","prompt":"a"}'))) == ["careful"]


def test_the_sandbox_fetches_nothing_so_it_may_get_any_address() -> None:
    assert able([SANDBOX], asking(REMOTE)) == [SANDBOX]


@pytest.mark.parametrize(
    ("asked", "suits_both"),
    [
        (asking(n=2), False),
        (asking(logprobs=True), False),
        (parse_text(b'{"model": "m", "prompt": "a"}'), False),
        (asking(tools=[CUSTOM]), False),
        (asking(tools=[FUNCTION], tool_choice=ALLOWED), False),
        (asking(tools=[FUNCTION], tool_choice=FUNCTION), True),
        (asking(n=1, logprobs=False), True),
    ],
)
def test_what_anthropic_lacks_goes_to_another_deployment_if_there_is_one(
    asked: GenerationRequest, suits_both: bool
) -> None:
    claude, other = route("claude", engine="anthropic"), route("other", engine="openai_compatible")
    assert able([claude, other], asked) == ([claude, other] if suits_both else [other])
    assert able([claude], asked) == [claude]  # its error says what it does not support


@pytest.mark.django_db
def test_a_deployment_allows_remote_media_only_when_it_says_so() -> None:
    model = ServedModel.objects.create(id="served")
    Deployment.objects.create(model=model, name="a", engine="sandbox")
    Deployment.objects.create(model=model, name="b", engine="sandbox", allow_remote_media=True)
    assert [each.allows_remote_media for each in deployments.load()["served"]] == [False, True]


@pytest.mark.django_db
@pytest.mark.parametrize(("value", "key"), [("sk-fake\n", "sk-fake"), (" ", None)])
def test_a_key_in_a_variable_has_no_white_space_around_it(
    monkeypatch: pytest.MonkeyPatch, value: str, key: str | None
) -> None:
    monkeypatch.setenv("THE_KEY", value)
    model = ServedModel.objects.create(id="served")
    Deployment.objects.create(model=model, name="a", engine="sandbox", api_key_env="THE_KEY")
    assert [each.target.api_key for each in deployments.load()["served"]] == [key]


@pytest.mark.django_db
def test_it_loads_what_is_active() -> None:
    model = ServedModel.objects.create(id="org/served")
    Deployment.objects.create(
        model=model,
        name="one",
        engine="sandbox",
        weight=3,
        priority=2,
        max_concurrent=5,
        retries=0,
        timeouts={"connect_ms": 7},
    )
    Deployment.objects.create(model=model, name="off", engine="sandbox", is_active=False)
    hidden = ServedModel.objects.create(id="hidden", is_active=False)
    Deployment.objects.create(model=hidden, name="two", engine="sandbox")
    loaded = deployments.load()
    assert loaded.keys() == {"org/served"}
    (only,) = loaded["org/served"]
    assert (only.target.name, only.weight, only.priority, only.on_disconnect) == ("one", 3, 2, "cancel")
    assert (only.max_concurrent, only.retries, only.key) == (5, 0, "org/served one")
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
