"""The parameter `models` in every protocol, and the name of the model that answers in every answer."""

import json
from typing import Any

import pytest

from chatapi.wire import caps, parsed_request, requests
from chatapi.wire.deltas import Finished, Started, Text, Usage, decode, encode
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import ParsedRequest
from chatapi.wire.protocols import PROTOCOLS, Answer, Dialect
from chatapi.wire.upstream.openai_request import upstream_body

HELLO = [{"role": "user", "content": "hello"}]
PROMPTS: dict[str, dict[str, Any]] = {
    "chat.completions": {"messages": HELLO},
    "completions": {"prompt": "hello"},
    "responses": {"input": "hello"},
    "messages": {"messages": HELLO, "max_tokens": 5},
}
ANSWERING = [(protocol, dialect) for protocol in PROMPTS for dialect in PROTOCOLS[protocol].dialects.values()]


def parse(protocol: str, **members: Any) -> ParsedRequest:
    body = {"model": "first"} | PROMPTS.get(protocol, {}) | members
    return parsed_request.parse(json.dumps(body).encode(), protocol, None)


@pytest.mark.parametrize("protocol", PROMPTS)
def test_every_protocol_takes_models_and_no_upstream_gets_them(protocol: str) -> None:
    parsed = parse(protocol, models=["second", "org/third"])
    assert parsed.summary.models == ("second", "org/third")
    assert parsed.summary.ignored == ()
    request = requests.from_bytes(parsed.content)
    body = upstream_body(request, model="first", max_output_tokens=5, extra_parameters=frozenset())
    assert "models" not in body
    assert parsed_request.read(parsed.content).summary.models == parsed.summary.models


@pytest.mark.parametrize("protocol", PROMPTS)
def test_an_empty_list_is_another_wish_than_none(protocol: str) -> None:
    assert parse(protocol, models=[]).summary.models == ()
    assert parse(protocol, models=None).summary.models is None
    assert parse(protocol).summary.models is None


@pytest.mark.parametrize("protocol", PROMPTS)
def test_another_list_is_another_request(protocol: str) -> None:
    digests = {parse(protocol, **each).summary.digest for each in ({}, {"models": ["a"]}, {"models": ["b"]})}
    assert len(digests) == 3


@pytest.mark.parametrize("protocol", PROMPTS)
@pytest.mark.parametrize(
    ("models", "param", "code"),
    [
        ("second", "models", "invalid_type"),
        ([1], "models[0]", "invalid_type"),
        (["a", "no name"], "models[1]", "invalid_value"),
        (["a"] * (caps.MAX_FALLBACKS + 1), "models", "invalid_value"),
    ],
)
def test_a_bad_list_is_refused_by_its_name(protocol: str, models: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(protocol, models=models)
    assert (refused.value.param, refused.value.code) == (param, code)


def test_embeddings_refuse_them() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse("embeddings", input="hello", models=["second"])
    assert (refused.value.param, refused.value.code) == ("models", "unsupported_parameter")


@pytest.mark.parametrize("name", [None, "org/second"])
@pytest.mark.parametrize(("protocol", "dialect"), ANSWERING, ids=lambda each: getattr(each, "name", each))
def test_an_answer_names_the_model_that_gives_it(protocol: str, dialect: Dialect, name: str | None) -> None:
    deltas = decode(encode([Started(model=name), Text("hi"), Finished("stop"), Usage(3, 1)]))
    answer = Answer("0" * 32, 1, "first", include_usage=True)
    folder = dialect.folder(answer)
    for delta in deltas:
        folder.add(delta)
    body = folder.body()
    assert isinstance(body, bytes)
    assert json.loads(body)["model"] == (name or "first")
    assert dialect.encoder is not None
    frames = dialect.encoder(answer).encode(deltas).decode()
    named, other = (name, "first") if name else ("first", "second")
    assert f'"model":"{named}"' in frames
    assert f'"{other}"' not in frames
