"""What a dialect decides about a request: a model of its own choice, idle `stream_options`, and the form
of refusals.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import parse
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.requests import refuse_idle_parameters
from tests.wire.request_bodies import HELLO, chat, chat_body, refusal, text, text_body

Parse = Callable[..., GenerationRequest]
PARSERS = pytest.mark.parametrize(("parse", "body"), [(parse_chat, chat_body), (parse_text, text_body)])

# The curl examples of the llama dialect's document: none of them names a model.
COMPLETION = '{"prompt":"Once upon a time","max_tokens":32,"stream":true}'
CHAT = """{
    "messages": [{"role":"user","content":"Hello!"}],
    "max_tokens": 16,
    "stream": true
  }"""
TOOLS = """{
    "messages": [{"role":"user","content":"Weather in Tokyo?"}],
    "tools": [{
      "type": "function",
      "function": {
        "name": "get_weather",
        "description": "Get weather for a city",
        "parameters": {
          "type": "object",
          "properties": { "city": { "type": "string" } },
          "required": ["city"]
        }
      }
    }],
    "tool_choice": "auto",
    "stream": true
  }"""


@pytest.mark.parametrize(
    ("parse", "body"), [(parse_text, COMPLETION), (parse_chat, CHAT), (parse_chat, TOOLS)]
)
def test_the_examples_of_the_llama_dialect_need_no_model(parse: Parse, body: str) -> None:
    request = parse(body.encode(), "local-model")
    assert (request.model, request.stream, request.ignored) == ("local-model", True, ())
    missing = refusal(body.encode(), parse)
    assert (missing.param, missing.code) == ("model", "missing_required_parameter")


@PARSERS
def test_a_default_is_for_requests_that_name_no_model(parse: Parse, body: Callable[..., bytes]) -> None:
    assert parse(body(), "other").model == "m"
    assert parse(body(model=None), "other").model == "other"
    assert parse(body(model=None), default_model="other").model == "other"
    for wrong in ("", 5, "a b", False):
        assert refusal(body(model=wrong), lambda sent: parse(sent, "other")).param == "model"


def test_a_number_out_of_range_is_not_a_missing_model() -> None:
    body = b'{"messages":[{"role":"user","content":"Hello!"}],"unknown":1e400}'
    assert refusal(body, lambda sent: parse_chat(sent, "m")).code == "invalid_value"


@pytest.mark.parametrize("sent", [chat, text])
def test_stream_options_without_stream_are_refused_on_demand(
    sent: Callable[..., GenerationRequest],
) -> None:
    for options in ({}, {"include_usage": True}, {"include_obfuscation": False}):
        for stream in (None, False):
            with pytest.raises(InvalidRequest, match="only allowed when 'stream' is enabled") as refused:
                refuse_idle_parameters(sent(stream=stream, stream_options=options))
            assert (refused.value.param, refused.value.status, refused.value.is_stream) == (
                "stream_options",
                400,
                False,
            )
        refuse_idle_parameters(sent(stream=True, stream_options=options))
    refuse_idle_parameters(sent())
    refuse_idle_parameters(sent(stream_options=None))


def test_stream_options_say_whether_usage_is_wanted() -> None:
    assert (chat().idle_parameters, chat().include_usage) == ((), False)
    options = chat(stream_options={})
    assert (options.idle_parameters, options.include_usage) == (("stream_options",), False)
    assert chat(stream_options={"include_usage": True}).include_usage


@pytest.mark.parametrize(("name", "body"), [("chat.completions", chat_body), ("completions", text_body)])
@pytest.mark.parametrize("options", [True, "yes", [], {"include_usage": 1}])
def test_opentoken_ignores_stream_options_of_any_form(
    name: str, body: Callable[..., bytes], options: Any
) -> None:
    """Its document: any `stream_options` field that a client sends is ignored."""
    sent = body(stream=True, stream_options=options, seed=2**60, unknown=1.0)
    for dialect, row in PROTOCOLS[name].dialects.items():
        if dialect == "opentoken":
            parsed = parse(sent, name, None, ignored_parameters=row.ignored_parameters)
            assert parsed == parse(body(stream=True, seed=2**60, unknown=1.0), name, None)
            wrong = body(stream=True, stream_options=options, n=0)
            found = refusal(wrong, partial(_without_options, name, row.ignored_parameters))
            assert (found.param, found.is_stream) == ("n", True)
        else:
            found = refusal(sent, partial(_without_options, name, row.ignored_parameters))
            assert (found.param or "").startswith("stream_options")


@pytest.mark.parametrize("rest", [b"", b', "\xff": 1}', b', "user": "\\ud800"}', b"}}"])
def test_opentoken_refuses_what_is_no_json_behind_wrong_stream_options(rest: bytes) -> None:
    """A number that no float holds ends the decoding before the rest is seen."""
    ignored_parameters = PROTOCOLS["chat.completions"].dialects["opentoken"].ignored_parameters
    body = b'{"stream_options": 1e999' + rest
    found = refusal(body, partial(_without_options, "chat.completions", ignored_parameters))
    assert (found.code, found.param) == ("invalid_json", None)


def _without_options(name: str, ignored_parameters: frozenset[str], body: bytes) -> Any:
    return parse(body, name, None, ignored_parameters=ignored_parameters)


NO_STREAM: list[Any] = [False, None, "true", 1, []]
WRONG: list[dict[str, Any]] = [
    {"temperature": 3},
    {"n": "5"},
    {"model": None},
    {"stop": "\0"},
    {"x" * n: 1 for n in range(1, 70)},
]


@PARSERS
@pytest.mark.parametrize("wrong", WRONG)
def test_a_refusal_tells_whether_a_stream_was_asked_for(
    parse: Parse, body: Callable[..., bytes], wrong: dict[str, Any]
) -> None:
    assert refusal(body(**wrong, stream=True), parse).is_stream
    for stream in NO_STREAM:
        assert not refusal(body(**wrong, stream=stream), parse).is_stream
    assert not refusal(body(**wrong), parse).is_stream


def test_so_does_the_refusal_of_numbers_and_keys_that_can_not_be_kept() -> None:
    body = chat_body(stream=True)[:-1]
    assert refusal(body + b',"seed":1e400}').is_stream
    assert refusal(body + b',"user":"a","user":"b"}').is_stream
    remote = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    assert refusal(chat_body(messages=[{"role": "user", "content": [remote]}], stream=True)).is_stream


@pytest.mark.parametrize(
    "body", [b"", b"null", b'[{"stream":true}]', b'{"stream":true', b'"stream"', b"\xff", b"[" * 100_000]
)
def test_what_can_not_be_read_asks_for_nothing(body: bytes) -> None:
    assert not refusal(body).is_stream


def test_a_nested_stream_is_not_the_request_s() -> None:
    body = json.dumps({"model": "m", "messages": [HELLO], "metadata": {"stream": True}}).encode()
    assert not refusal(body).is_stream
