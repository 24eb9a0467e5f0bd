"""What becomes of a request: its way through Redis, the upstream's body, what is left out, and the bound of
its prompt.
"""

import json
import runpy
import sys
from functools import reduce
from operator import or_
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest

from chatapi.wire.caps import MAX_EXTRA_BYTES, MAX_IGNORED
from chatapi.wire.generation_request import GenerationRequest, check_fields
from chatapi.wire.messages import (
    AudioPart,
    CalledFunction,
    File,
    FunctionCall,
    FunctionMessage,
    ImageUrl,
    Message,
    Part,
)
from chatapi.wire.parameters import (
    COMPLETION_LIMIT,
    DEAR_TIERS,
    ENGINE_PARAMETERS,
    SERVICE_TIER,
    CustomTool,
    FunctionDefinition,
    Tool,
)
from chatapi.wire.prompts import Messages
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.requests import from_bytes, ignored_parameters, to_bytes
from chatapi.wire.upstream import anthropic_request, openai_request
from chatapi.wire.upstream.custom_tools import as_functions
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.request_bodies import (
    CUSTOM,
    FUNCTION,
    HELLO,
    chat,
    chat_body,
    chat_refusal,
    refusal,
    summary,
    text,
    text_body,
)

NOTHING: frozenset[str] = frozenset()
INNER = (FunctionCall, CalledFunction, FunctionDefinition, ImageUrl, File)
STRUCTS = (*get_args(Message), *get_args(Part), *get_args(Tool), *INNER)
REFUSED_BY_ANTHROPIC = {FunctionMessage, AudioPart, CustomTool}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"é"}'}}
CALLS = [CALL, {"id": "c", "type": "custom", "custom": {"name": "f", "input": ""}}]
SCHEMA = {
    "type": "object",
    "properties": {"größe": {"type": "number", "maximum": 10**30, "multipleOf": 0.1, "default": None}},
}

EVERYTHING: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi"}, {"type": "file", "file": {"file_id": "file-1"}}],
            "name": "ann",
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "22 C", "tool_call_id": "call_1"},
    ],
    "audio": {"format": "mp3", "voice": {"id": "v"}},
    "frequency_penalty": -0.5,
    "function_call": {"name": "f"},
    "functions": [{"name": "f", "description": "d", "parameters": SCHEMA}],
    "logit_bias": {"50256": -100},
    "logprobs": True,
    "top_logprobs": 5,
    "max_completion_tokens": 100,
    "metadata": {"a": "b"},
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni", "policy": {"input": {"mode": "score"}}},
    "n": 2,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
    },
    "safety_identifier": "s",
    "seed": 7,
    "service_tier": "auto",
    "stop": ["a", "b"],
    "store": False,
    "temperature": 0.5,
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "tools": [
        FUNCTION,
        CUSTOM
        | {
            "custom": {
                "name": "c",
                "format": {"type": "grammar", "grammar": {"definition": "x", "syntax": "lark"}},
            }
        },
    ],
    "top_p": 0.9,
    "user": "u",
    "verbosity": "high",
    "web_search_options": {
        "search_context_size": "low",
        "user_location": {"type": "approximate", "approximate": {"city": "Rome"}},
    },
}


def test_everything_in_openai_s_reference_is_forwarded_as_sent() -> None:
    request = chat(**EVERYTHING, stream=False, stream_options={"include_usage": False})
    body = upstream_body(request, model="upstream/model", max_output_tokens=50, extra_parameters=NOTHING)
    always = {
        "model": "upstream/model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 50,
    }
    assert msgspec.json.decode(msgspec.json.encode(body)) == EVERYTHING | always
    assert request.ignored == ()


def test_everything_in_the_text_reference_is_forwarded_as_sent() -> None:
    sent = {
        "best_of": 2,
        "echo": True,
        "frequency_penalty": 1.0,
        "logit_bias": {"1": 1},
        "logprobs": 2,
        "n": 2,
        "presence_penalty": 1.0,
    }
    sent |= {
        "prompt": [[1, 2]],
        "seed": 1,
        "stop": "x",
        "suffix": "s",
        "temperature": 0.0,
        "top_p": 1.0,
        "user": "u",
    }
    body = upstream_body(text(**sent), model="m", max_output_tokens=16, extra_parameters=NOTHING)
    assert body == sent | {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
    }


def test_the_best_of_several_is_not_asked_for_as_a_stream() -> None:
    body = upstream_body(
        text(best_of=3, stream_options={}), model="m", max_output_tokens=16, extra_parameters=NOTHING
    )
    assert body == {"model": "m", "prompt": "Once", "best_of": 3, "max_tokens": 16}


def test_what_the_client_left_out_stays_out() -> None:
    body = upstream_body(chat(), model="m", max_output_tokens=9, extra_parameters=NOTHING)
    assert body == {
        "model": "m",
        "messages": [HELLO],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
    }


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({}, "max_tokens"),
        ({"max_tokens": 99}, "max_tokens"),
        ({"max_completion_tokens": 99}, "max_completion_tokens"),
    ],
)
def test_the_limit_keeps_the_client_s_name_and_takes_the_capped_value(
    members: dict[str, Any], limit: str
) -> None:
    body = upstream_body(chat(**members), model="m", max_output_tokens=9, extra_parameters=NOTHING)
    assert {name: value for name, value in body.items() if name.startswith("max")} == {limit: 9}


@pytest.mark.parametrize("called", CALLS)
def test_what_an_upstream_wants_back_with_a_call_goes_to_those_that_take_it(called: dict[str, Any]) -> None:
    signed = called | {"extra_content": {"google": {"thought_signature": "c2ln" * 99}}}
    request = chat(messages=[HELLO, {"role": "assistant", "tool_calls": [signed]}])
    for taken, sent in ((NOTHING, called), (frozenset({"extra_content"}), signed)):
        body = upstream_body(request, model="m", max_output_tokens=9, extra_parameters=taken)
        assert body["messages"][1]["tool_calls"] == [sent]
        functions = as_functions(from_bytes(to_bytes(request)))
        body = upstream_body(functions, model="m", max_output_tokens=9, extra_parameters=taken)
        assert body["messages"][1]["tool_calls"][0].get("extra_content") == sent.get("extra_content")
    assert request.prompt_bytes > len("c2ln" * 99), "the hold covers it"


@pytest.mark.parametrize("unknown", [None, "c2ln", [], 1, True])
@pytest.mark.parametrize("called", CALLS)
def test_what_an_upstream_wants_back_is_dropped_if_it_is_no_object(
    called: dict[str, Any], unknown: object
) -> None:
    calls = [called | {"extra_content": unknown}]
    request = from_bytes(to_bytes(chat(messages=[HELLO, {"role": "assistant", "tool_calls": calls}])))
    taken = frozenset({"extra_content"})
    body = upstream_body(request, model="m", max_output_tokens=9, extra_parameters=taken)
    assert body["messages"][1]["tool_calls"] == [called]


@pytest.mark.parametrize("members", [{}, {"max_tokens": 99}, {"max_completion_tokens": 99}])
def test_chats_have_the_limit_s_new_name_where_a_deployment_wants_it(members: dict[str, Any]) -> None:
    wanted = frozenset({COMPLETION_LIMIT})
    body = upstream_body(chat(**members), model="m", max_output_tokens=9, extra_parameters=wanted)
    assert {name: value for name, value in body.items() if name.startswith("max")} == {COMPLETION_LIMIT: 9}
    body = upstream_body(text(max_tokens=99), model="m", max_output_tokens=9, extra_parameters=wanted)
    assert {name: value for name, value in body.items() if name.startswith("max")} == {"max_tokens": 9}


def test_only_one_limit_is_sent() -> None:
    body = upstream_body(
        chat(max_tokens=5, max_completion_tokens=7), model="m", max_output_tokens=7, extra_parameters=NOTHING
    )
    assert "max_tokens" not in body


def test_a_deployment_gets_the_extras_that_it_asks_for() -> None:
    request = chat(top_k=40, min_p=0.1, repetition_penalty=1.1)
    body = upstream_body(
        request, model="m", max_output_tokens=9, extra_parameters=frozenset({"top_k", "model", "api_key"})
    )
    assert (body["top_k"], body["model"]) == (40, "m")
    assert not {"min_p", "repetition_penalty", "extras", "ignored", "request"} & set(body)
    assert ignored_parameters(request, frozenset({"top_k"})) == ("min_p", "repetition_penalty")


@pytest.mark.parametrize("tier", sorted(DEAR_TIERS))
def test_a_tier_above_the_usual_price_goes_only_to_deployments_that_ask_for_it(tier: str) -> None:
    request = chat(service_tier=tier)
    for extra_parameters, sent in ((NOTHING, None), (frozenset({SERVICE_TIER}), tier)):
        body = upstream_body(request, model="m", max_output_tokens=9, extra_parameters=extra_parameters)
        assert body.get("service_tier") == sent
    assert ignored_parameters(summary(service_tier=tier), NOTHING) == ("service_tier",)
    assert ignored_parameters(summary(service_tier=tier), frozenset({SERVICE_TIER})) == ()


@pytest.mark.parametrize("tier", ["auto", "default", "flex"])
def test_any_other_tier_goes_to_all(tier: str) -> None:
    body = upstream_body(chat(service_tier=tier), model="m", max_output_tokens=9, extra_parameters=NOTHING)
    assert body["service_tier"] == tier
    assert ignored_parameters(summary(service_tier=tier), NOTHING) == ()


NEVER_FORWARDED = "api_base base_url api_key api_version headers extra_headers extra_query extra_body"
NEVER_FORWARDED += " default_headers organization user_id tenant team_id is_admin deployment_id"
NEVER_FORWARDED += " custom_llm_provider provider route fallbacks proxy timeout"
NEVER_FORWARDED += " n_predict chat_template logits_processors use_beam_search echo"
OURS = "extras ignored request type prompt_bytes Model prompt"


def test_anything_else_is_dropped_and_named() -> None:
    for name in [*NEVER_FORWARDED.split(), *OURS.split(), "m\u043edel"]:
        request = parse_chat(chat_body(**{name: "canary"}))
        assert b"canary" not in to_bytes(request)
        assert request.extras == {}
        assert request.ignored == (name.replace("\u043e", "?"),)
        body = upstream_body(
            request, model="m", max_output_tokens=9, extra_parameters=ENGINE_PARAMETERS | {name}
        )
        assert "canary" not in json.dumps(body)


def test_clients_can_not_set_what_is_ours() -> None:
    request = chat(ignored=["x"], extras={"top_k": 1, "api_key": "k"}, request="text", top_k=2)
    assert (request.extras, request.ignored) == ({"top_k": 2}, ("ignored", "extras", "request"))
    assert isinstance(from_bytes(to_bytes(request)).prompt, Messages)


def test_names_of_ignored_parameters_are_safe_to_print() -> None:
    assert chat(**{"a\r\nSet-Cookie: b": 1, "x" * 100: 1}).ignored == ("a??Set-Cookie??b", "x" * 64)


def test_what_is_not_ours_is_capped() -> None:
    assert chat_refusal(documents="x" * MAX_EXTRA_BYTES) == ("documents", "invalid_value")
    assert chat(**{f"x{number}": 1 for number in range(MAX_IGNORED)})
    assert (
        refusal(chat_body(**{f"x{number}": 1 for number in range(MAX_IGNORED + 1)})).code
        == "unknown_parameter"
    )


@pytest.mark.parametrize(
    "request_",
    [
        parse_chat(chat_body()),
        parse_chat(chat_body(**EVERYTHING, stream=True, top_k=5, api_key="k")),
        parse_chat(
            chat_body(
                messages=[
                    {"role": "assistant", "refusal": "No."},
                    {"role": "assistant", "content": None, "refusal": "No."},
                ]
            )
        ),
        parse_text(text_body()),
        parse_text(text_body(prompt=[[1, 2], [3]], logprobs=True, n=2, min_p=0.25)),
    ],
)
def test_a_request_comes_back_from_redis_as_it_was(request_: GenerationRequest) -> None:
    returned = from_bytes(to_bytes(request_))
    assert returned == request_
    assert type(returned.prompt) is type(request_.prompt)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\x80",
        b'{"request":"other"}',
        b'{"request":"chat","model":"m"}',
        b'{"request":"generation.1","model":"m","digest":""}',
        to_bytes(chat()).replace(b"generation.1", b"generation.2"),
    ],
)
def test_nothing_else_comes_back_from_redis(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        from_bytes(data)


@pytest.mark.parametrize(
    ("job", "meant"),
    [
        (
            b'{"request":"generation.1","model":"m","prompt":{"kind":"messages",'
            b'"messages":[{"role":"user","content":"Hello!"}]},'
            b'"digest":"1bb23d8d9107f7d7084f2e2ea223430f432399e338892342ce51e51e0257fa45"}',
            chat(),
        ),
        (
            b'{"request":"generation.1","model":"m","max_tokens":16,'
            b'"prompt":{"kind":"texts","prompt":"Once","echo":true},'
            b'"digest":"c14daa56269ca77b98f9fd5765db3c623c6647673a4fa2175264b246300f8f60"}',
            text(echo=True),
        ),
    ],
)
def test_what_the_release_before_has_put_into_jobs_can_be_read(job: bytes, meant: GenerationRequest) -> None:
    assert from_bytes(job) == meant


def test_requests_are_frozen() -> None:
    with pytest.raises(AttributeError):
        chat().model = "other"  # type: ignore[misc]


@pytest.mark.parametrize("content", ["Hello!", "漢字" * 50, "👩‍👩‍👧‍👦" * 20, '\\"\n' * 50, ""])
def test_prompt_bytes_count_all_that_becomes_prompt(content: str) -> None:
    request = chat(messages=[{"role": "user", "content": content}])
    with_tools = chat(**EVERYTHING | {"messages": [{"role": "user", "content": content}]})
    assert request.prompt_bytes >= len(content.encode()) + request.prompt.overhead_tokens
    assert with_tools.prompt_bytes > request.prompt_bytes + len(json.dumps(SCHEMA)) * 2


def test_documents_and_template_arguments_are_part_of_the_prompts_bound() -> None:
    documents = [{"text": "x" * 1_000}]
    assert chat(documents=documents).prompt_bytes - chat(top_k=1).prompt_bytes == len(
        json.dumps(documents, separators=(",", ":"))
    )
    assert chat(chat_template_kwargs={"persona": "y" * 500}).prompt_bytes > chat().prompt_bytes + 500


@pytest.mark.parametrize(
    ("members", "bound"),
    [
        ({}, 64 + 16 + len("Hello!")),
        ({"messages": [{"role": "user", "content": "x" * 9_000}]}, 8_192),
        ({"web_search_options": {}}, 8_192),
        (
            {
                "messages": [
                    HELLO,
                    {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
                ]
            },
            8_192,
        ),
        ({"messages": [HELLO, {"role": "assistant", "audio": {"id": "audio_1"}}]}, 8_192),
    ],
)
def test_what_can_not_be_measured_may_fill_the_context_window(members: dict[str, Any], bound: int) -> None:
    assert summary(**members).prompt_tokens_bound(8_192) == bound


def test_all_text_of_a_chat_is_part_of_the_prompt() -> None:
    prompt = chat(**EVERYTHING).prompt_text
    for part in ("Be brief.", "Hi", "ann", "get_weather", '{"city":"é"}', "22 C", "größe", "lark"):
        assert part in prompt
    legacy = [
        {
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "Never"}],
            "function_call": {"name": "f", "arguments": "args"},
        }
    ]
    legacy.append(
        {
            "role": "assistant",
            "refusal": "No",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "cu", "input": "stom"}}],
        }
    )
    texts = ["Never", "f", "args", "No", "cu", '{"input":"stom"}']
    assert chat(messages=legacy).prompt_text.split("\n") == texts


def test_a_field_that_upstreams_get_by_accident_is_found() -> None:
    first, *others = fields = GenerationRequest.__struct_fields__
    check_fields(GenerationRequest, {first}, others)
    for sets, wrong in (((others,), first), ((fields, {first}), first), ((fields, {"new"}), "new")):
        with pytest.raises(AssertionError, match=f": {wrong}$"):
            check_fields(GenerationRequest, *sets)


@pytest.mark.parametrize(
    ("upstream", "struct"),
    [
        *((openai_request, struct) for struct in STRUCTS),
        *((anthropic_request, struct) for struct in STRUCTS if struct not in REFUSED_BY_ANTHROPIC),
    ],
)
def test_nothing_starts_with_a_member_that_no_set_has(
    monkeypatch: pytest.MonkeyPatch, upstream: ModuleType, struct: type[msgspec.Struct]
) -> None:
    name, room = struct.__name__, sys.modules[struct.__module__]
    tag = struct.__struct_config__.tag
    wider = msgspec.defstruct(name, [("new", str, "")], bases=(struct,), frozen=True, tag=tag)
    monkeypatch.setattr(room, name, wider)
    for union in {"Message", "Part", "Tool"} & vars(room).keys():
        structs = get_args(getattr(room, union))
        monkeypatch.setattr(room, union, reduce(or_, [wider if each is struct else each for each in structs]))
    with pytest.raises(AssertionError, match=rf"\b{name}\b.*: new$"):
        runpy.run_path(str(upstream.__file__))
