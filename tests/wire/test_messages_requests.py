"""What a Messages request asks for is what the chat request in OpenAI's words asks for; errors use the
client's own words.
"""

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from chatapi.wire import requests
from chatapi.wire.caps import MAX_CONTENT_PARTS
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import parse
from chatapi.wire.protocols.messages import COUNT_TOKENS, MESSAGES
from chatapi.wire.protocols.messages.blocks import Block
from chatapi.wire.protocols.messages.request import MessagesRequest
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.request_bodies import chat

DOCUMENT = (Path(__file__).parents[2] / "docs/messages.md").read_text()
FIELDS = [name for name in MessagesRequest.__struct_fields__ if name not in ("extras", "ignored")]
BLOCKS = [block.__struct_config__.tag for block in get_args(Block)]
USER = {"role": "user", "content": "Hello!"}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
TOOL = {"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}
FUNCTION = {
    "type": "function",
    "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object"}},
}
THOUGHT = {"type": "thinking", "thinking": "t", "signature": "s"}
BILLING = "x-anthropic-billing-header: cc_version=2.1.77.a8f; cc_entrypoint=cli; cch=fa690;"
LONG = "mcp__" + "x" * 100
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def asked(**members: Any) -> GenerationRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [USER]} | members
    parsed = parse(json.dumps(body).encode(), MESSAGES.name, None)
    return requests.from_bytes(parsed.content)  # valid for a worker, too


def upstream_messages(request: GenerationRequest, *extra_parameters: str) -> Any:
    """Return the conversation as an OpenAI-compatible upstream gets it."""
    body = upstream_body(
        request, model="up", max_output_tokens=9, extra_parameters=frozenset(extra_parameters)
    )
    return body["messages"]


def refused(**members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        asked(**members)
    return raised.value


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def use(id: str, name: str = "get_weather", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str, **members: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id} | members


def call(id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def turn(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content[0] if isinstance(content[0], str) else [*content]}


def assistant(*content: Any) -> dict[str, Any]:
    return turn(*content, role="assistant")


def change(kind: str, **tool: Any) -> dict[str, Any]:
    return {"type": f"tool_{kind}", "tool": {"type": "tool_reference", "name": "get_weather"} | tool}


CHANGE = turn(change("addition"), role="system")
CONVERSATIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "a string": ([USER], [USER]),
    "nothing": ([turn(""), turn("", role="system")], [turn("")]),
    "a block": ([turn(text("Hello!"))], [USER]),
    "blocks": ([turn(text("a"), text(""), text("b"))], [turn(text("a"), text("b"))]),
    "a picture": ([turn(text("a"), {"type": "image", "source": PNG})], [turn(text("a"), PICTURE)]),
    "marks of a cache, citations, and what a newer beta adds": (
        [turn({**text("a"), "cache_control": {"type": "ephemeral"}, "citations": [], "x": 1})],
        [turn("a")],
    ),
    "a PDF": (
        [turn({"type": "document", "source": PDF, "title": "t.pdf"})],
        [
            turn(
                {
                    "type": "file",
                    "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "t.pdf"},
                }
            )
        ],
    ),
    "documents with long titles": (
        [
            turn(
                {"type": "document", "source": PDF, "title": "t" * 500},
                {"type": "document", "source": {"type": "content", "content": "a"}, "title": "t" * 500},
            )
        ],
        [
            turn(
                {
                    "type": "file",
                    "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "t" * 256},
                },
                *(text("t" * 500), text("a")),
            )
        ],
    ),
    "documents of text": (
        [
            turn(
                {
                    "type": "document",
                    "title": "t",
                    "context": "c",
                    "source": {"type": "text", "media_type": "text/plain", "data": "a"},
                },
                {
                    "type": "document",
                    "source": {"type": "content", "content": [text("b"), {"type": "image", "source": PNG}]},
                },
                {"type": "search_result", "source": "s", "title": "t", "content": [text("c")]},
            )
        ],
        [turn(text("t\nc"), text("a"), text("b"), PICTURE, text("t\ns\nc"))],
    ),
    "two turns of one role are one": (
        [turn("a"), turn("b"), assistant("c"), assistant("d"), turn("e")],
        [turn(text("a"), text("b")), assistant("cd"), turn("e")],
    ),
    "thinking, and what Anthropic's servers did, are dropped": (
        [
            USER,
            assistant(
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                text("a"),
            ),
            assistant({"type": "redacted_thinking", "data": "x"}),
            USER,
        ],
        [USER, assistant("a"), USER],
    ),
    "all that Anthropic answers may be in old turns; a summary is a text": (
        [
            USER,
            assistant(
                {"type": "compaction", "content": "They said hello.", "encrypted_content": "x"},
                {"type": "compaction", "content": None},
                {"type": "fallback", "from": {"model": "m"}, "to": {"model": "n"}},
                {"type": "advisor_tool_result", "tool_use_id": "srvtoolu_1", "content": {}},
                {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []},
                {"type": "container_upload", "file_id": "file_1"},
                text("a"),
            ),
            USER,
        ],
        [USER, assistant("They said hello.\n\na"), USER],
    ),
    "a call and its result": (
        [USER, assistant(text("a"), use("1", city="Tokyo")), turn(result("1", content="sunny"))],
        [
            USER,
            {"role": "assistant", "content": "a", "tool_calls": [call("1", '{"city":"Tokyo"}')]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ],
    ),
    "results come first, then their pictures, then the rest": (
        [
            USER,
            assistant(use("1"), use("2")),
            turn(text("b"), result("1", content=[text("a"), {"type": "image", "source": PNG}])),
            turn(result("2"), text("c")),
        ],
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call("1"), call("2")]},
            {"role": "tool", "tool_call_id": "1", "content": "a"},
            {"role": "tool", "tool_call_id": "2", "content": ""},
            turn(PICTURE, text("b"), text("c")),
        ],
    ),
    "a result that is only a picture": (
        [USER, assistant(use("1")), turn(result("1", content=[{"type": "image", "source": PNG}]))],
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call("1")]},
            {"role": "tool", "tool_call_id": "1", "content": "The output is in the next message."},
            turn(PICTURE),
        ],
    ),
    "a result that is an error": (
        [USER, assistant(use("1")), turn(result("1", content="no", is_error=True))],
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call("1")]},
            {"role": "tool", "tool_call_id": "1", "content": "Error: no"},
        ],
    ),
    "instructions between turns": (
        [turn("a"), turn(text("be brief"), role="system"), turn("b")],
        [turn("a"), turn("be brief", role="system"), turn("b")],
    ),
    "changes of the tools are dropped": (
        [
            turn("a"),
            turn(change("addition"), change("removal"), role="system"),
            {"role": "system", "output_config": {"effort": "low"}},
            assistant("b"),
            turn("c"),
            turn(text("be brief"), change("addition"), role="system"),
        ],
        [turn("a"), assistant("b"), turn("c"), turn("be brief", role="system")],
    ),
    "changes of the tools inside a turn": (
        [turn("a"), CHANGE, turn("b"), assistant(use("1")), CHANGE, turn(result("1", content="sunny"))],
        [
            turn(text("a"), text("b")),
            {"role": "assistant", "content": None, "tool_calls": [call("1")]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ],
    ),
}


@pytest.mark.parametrize("name", [*FIELDS, *BLOCKS])
def test_the_document_names_each_field_and_kind_of_block(name: str) -> None:
    assert re.search(rf"`{name}[`.]", DOCUMENT)


@pytest.mark.parametrize("case", CONVERSATIONS)
def test_a_conversation_is_the_chats(case: str) -> None:
    turns, messages = CONVERSATIONS[case]
    assert upstream_messages(asked(messages=turns)) == upstream_messages(chat(messages=messages))


def test_thinking_is_reasoning_content_where_the_deployment_takes_it() -> None:
    turns = CONVERSATIONS["thinking, and what Anthropic's servers did, are dropped"][0]
    assert upstream_messages(asked(messages=turns), "reasoning_content") == [
        USER,
        assistant("a") | {"reasoning_content": "t"},
        USER,
    ]


@pytest.mark.parametrize(
    ("system", "messages"),
    [
        ("Be brief.", [turn("Be brief.", role="system")]),
        ([text("Be brief.")], [turn("Be brief.", role="system")]),
        ([text("a"), text("b")], [turn(text("a"), text("b"), role="system")]),
        ("", []),
        ([], []),
        ([text(BILLING), text("Be brief.")], [turn("Be brief.", role="system")]),
        ([text(f"{BILLING}\n")], []),
        (BILLING, []),
        (f"{BILLING}\nBe brief.", [turn(f"{BILLING}\nBe brief.", role="system")]),
    ],
)
def test_the_system_prompt_is_the_first_message(system: Any, messages: list[Any]) -> None:
    assert asked(system=system).prompt == chat(messages=[*messages, USER]).prompt


SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
}


@pytest.mark.parametrize(
    ("members", "openais"),
    [
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop_sequences": []}, {}),
        ({"temperature": 1, "top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5}),
        ({"service_tier": "auto"}, {"service_tier": "auto"}),
        ({"service_tier": "standard_only"}, {"service_tier": "default"}),
        ({"metadata": {"user_id": "u", "x": 1}}, {"user": "u"}),
        ({"tools": [TOOL]}, {"tools": [FUNCTION]}),
        ({"tools": [TOOL | {"type": "custom", "cache_control": None, "x": 1}]}, {"tools": [FUNCTION]}),
        ({"tools": [TOOL | {"type": None}]}, {"tools": [FUNCTION]}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto"}},
            {"tools": [FUNCTION], "tool_choice": "auto"},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "none"}},
            {"tools": [FUNCTION], "tool_choice": "none"},
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}},
            {
                "tools": [FUNCTION],
                "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            },
        ),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "max"}),
        ({"output_config": {"format": SCHEMA}}, {"response_format": FORMAT}),
        ({"output_format": SCHEMA}, {"response_format": FORMAT}),
        ({"top_k": 5}, {"top_k": 5}),
        *(
            ({"thinking": {"type": "adaptive"} | more}, {"thinking": {"type": "adaptive"} | more})
            for more in ({}, {"display": "updates", "block_binding": {"prefix_mismatch_behavior": "error"}})
        ),
        ({"stream": True}, {}),
    ],
)
def test_a_parameter_is_openais(members: dict[str, Any], openais: dict[str, Any]) -> None:
    ours, theirs = asked(**members), chat(max_completion_tokens=9, **openais)
    options: dict[str, Any] = {
        "model": "up",
        "max_output_tokens": 9,
        "extra_parameters": frozenset({"top_k", "thinking"}),
    }
    assert upstream_body(ours, **options) == upstream_body(theirs, **options)
    assert ours.stream == members.get("stream", False)


@pytest.mark.parametrize(
    ("budget_tokens", "effort"), [(1_024, "low"), (4_999, "low"), (5_000, "medium"), (32_000, "high")]
)
def test_a_budget_of_thinking_is_an_effort(budget_tokens: int, effort: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget_tokens}
    request = asked(thinking=thinking, max_tokens=64_000)
    assert (request.reasoning_effort, request.extras) == (effort, {"thinking": thinking})


def test_it_has_more_stop_sequences_than_openais_four() -> None:
    body = upstream_body(
        asked(stop_sequences=["a"] * 32), model="up", max_output_tokens=9, extra_parameters=frozenset()
    )
    assert body["stop"] == ["a"] * 32


def test_it_has_more_tools_than_openais_128() -> None:
    tools = [TOOL | {"name": f"tool_{number}"} for number in range(1_024)]
    assert len(json.loads(bytes(asked(tools=tools).tools))) == 1_024


def test_a_long_end_user_is_a_checksum() -> None:
    request = asked(metadata={"user_id": "user_" + "0" * 100})
    assert request.end_user is not None
    assert len(request.end_user) == 64


def test_a_long_name_of_a_tool_is_short_upstream_and_comes_back() -> None:
    request = asked(
        tools=[TOOL | {"name": LONG}],
        tool_choice={"type": "tool", "name": LONG},
        messages=[USER, assistant(use("1", LONG)), turn(result("1"))],
    )
    body = upstream_body(request, model="m", max_output_tokens=9, extra_parameters=frozenset())
    (short,) = request.context["tools"]
    assert (len(short), request.context) == (64, {"tools": {short: LONG}})
    assert json.loads(bytes(body["tools"]))[0]["function"]["name"] == short
    assert body["tool_choice"]["function"]["name"] == short
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == short


def test_what_nobody_can_receive_is_named() -> None:
    toolset = {"type": "mcp_toolset", "mcp_server_name": "s"}
    request = asked(
        tools=[
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
            {"type": "advisor_20260301", "name": "advisor", "model": "m"},
            *(toolset, toolset | {"mcp_server_name": "t"}),
            TOOL,
        ],
        container="c", context_management={}, mcp_servers=[], inference_geo="eu", cache_control={},
    )  # fmt: skip
    named = {"container", "context_management", "mcp_servers", "inference_geo"}
    named |= {f"tools[{index}]" for index in range(4)}
    assert (set(request.ignored), len(json.loads(bytes(request.tools)))) == (named, 1)


def test_marks_of_a_cache_are_for_deployments_that_take_them() -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    request = asked(system=[text("a") | mark], tools=[TOOL | mark])
    assert (request.extras, request.extra_names) == ({}, ("cache_control",))
    assert upstream_messages(request)[0] == turn("a", role="system")
    assert upstream_messages(request, "cache_control")[0] == turn(text("a") | mark, role="system")
    assert (asked(**mark).extras, asked().extra_names) == (mark, ())


@pytest.mark.parametrize(
    ("kind", "source", "wrong"),
    [("image", PNG, "A" * (5 * 1024**2 + 64)), ("image", PNG, "<svg>"), ("document", PDF, "é")],
    ids=["too long", "no base64", "no base64 of a PDF"],
)
def test_a_picture_has_5_mib_of_base64_as_claude_code_sends_it(
    kind: str, source: dict[str, str], wrong: str
) -> None:
    assert asked(messages=[turn({"type": kind, "source": source | {"data": "A" * 5 * 1024**2}})])
    error = refused(messages=[turn({"type": kind, "source": source | {"data": wrong}})])
    assert error.param == "messages[0].content[0].source.data"
    assert "base64 of at most 5242880 characters" in error.message


def test_a_remote_picture_has_the_clients_path() -> None:
    remote = {"type": "image", "source": {"type": "url", "url": "https://pictures.example/a.png"}}
    own = [text("a"), remote]
    assert asked(messages=[USER, turn(*own)]).remote_media_param == "messages[1].content[1].source.url"
    results = [USER, assistant(use("1")), turn(result("1", content=own))]
    assert asked(messages=results).remote_media_param == "messages[2].content[0].content[1].source.url"
    document = {"type": "document", "source": {"type": "content", "content": [remote]}}
    path = "messages[0].content[0].source.content[0].source.url"
    assert asked(messages=[turn(document)]).remote_media_param == path


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [turn({"type": "video"})]}, "messages[0].content[0].type"),
        ({"messages": [turn(use("1"))]}, "messages[0].content[0].type"),
        ({"messages": [turn({"type": "text"})]}, "messages[0].content[0].text"),
        (
            {"messages": [turn({"type": "image", "source": PNG | {"data": "<svg>"}})]},
            "messages[0].content[0].source.data",
        ),
        (
            {"messages": [turn({"type": "image", "source": PNG | {"media_type": "image/svg+xml"}})]},
            "messages[0].content[0].source.media_type",
        ),
        (
            {"messages": [turn({"type": "image", "source": {"type": "url", "url": "file:///x"}})]},
            "messages[0].content[0].source.url",
        ),
        (
            {"messages": [turn({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
            "messages[0].content[0].source.type",
        ),
        (
            {"messages": [turn({"type": "document", "source": {"type": "url", "url": "https://a.example"}})]},
            "messages[0].content[0].source.type",
        ),
        (
            {"messages": [turn({"type": "document", "source": PDF | {"data": "é"}})]},
            "messages[0].content[0].source.data",
        ),
        (
            {"messages": [turn({"type": "document", "source": PDF, "title": "t" * 501})]},
            "messages[0].content[0].title",
        ),
        ({"messages": [USER, assistant("pre")]}, "messages[1].role"),
        ({"messages": [USER, assistant("pre"), CHANGE]}, "messages[1].role"),
        ({"messages": [CHANGE], "system": "s"}, "messages"),
        ({"messages": [USER, assistant(use("1")), USER]}, "messages[1].content"),
        (
            {"messages": [USER, assistant(use("1")), turn("x", role="system"), turn(result("1"))]},
            "messages[1].content",
        ),
        ({"messages": [turn(result("1"))]}, "messages[0].content"),
        ({"messages": [USER, assistant(use("1")), turn(result("1"), result("1"))]}, "messages[2].content"),
        ({"messages": [turn(*[text("a")] * MAX_CONTENT_PARTS), USER]}, "messages[0].content"),
        (
            {
                "messages": [
                    USER,
                    assistant(*(use(str(id)) for id in range(1_025))),
                    turn(*(result(str(id)) for id in range(1_025))),
                ]
            },
            "messages[1].content",
        ),
        (
            {"messages": [USER, *[assistant(*[THOUGHT] * (MAX_CONTENT_PARTS // 2 + 1))] * 2, USER]},
            "messages[1].content",
        ),
        (
            {"messages": [USER, turn(change("addition", type="tool_definition"), role="system")]},
            "messages[1].content[0].tool.type",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 33}, "stop_sequences"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"type": "computer_toolset_20260801"}]}, "tools[0].type"),
        ({"tools": [TOOL] * 1_025}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        (
            {
                "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "tool_choice.name",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024},
            "thinking.budget_tokens",
        ),
        ({"thinking": {"type": "x"}}, "thinking.type"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"thread": {"type": "create"}}, "thread"),
    ],
)
def test_a_refusal_names_the_clients_own_parameter(members: dict[str, Any], param: str) -> None:
    error = refused(**members)
    assert error.param == param
    assert f"'{param}'" in error.message


def test_tokens_are_counted_of_all_that_becomes_prompt() -> None:
    def count(**members: Any) -> int:
        body = {"model": "m", "messages": [USER]} | members
        parsed = parse(json.dumps(body).encode(), COUNT_TOKENS.name, None)
        assert parsed.content == b""
        assert parsed.summary.prompt_tokens is not None
        return parsed.summary.prompt_tokens

    bare = count()
    assert bare == asked().prompt_tokens_estimate
    assert bare < count(system="Be brief.") < count(system="Be brief.", tools=[TOOL])
    assert count(max_tokens=5, stream=True) == bare
    assert (
        bare < count(messages=[USER, assistant("a")]) < count(messages=[USER, assistant(text("a"), use("1"))])
    )


def test_the_digest_tells_requests_apart() -> None:
    assert asked().digest == asked().digest != asked(max_tokens=8).digest
    assert msgspec.structs.replace(asked(), digest="") != asked()
