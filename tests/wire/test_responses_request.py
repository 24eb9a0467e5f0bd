"""`/v1/responses`: what its body becomes for an upstream, and the refusals in the client's own words."""

import json
from typing import Any

import msgspec
import pytest

from chatapi.wire import caps, requests
from chatapi.wire.deltas import Finished, Started, Text, TokenLogprob, Usage
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest, UnresolvedReferences
from chatapi.wire.messages import AssistantMessage, ToolMessage, UserMessage
from chatapi.wire.parameters import PromptCacheOptions
from chatapi.wire.parsed_request import parse
from chatapi.wire.prompts import Messages
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.responses import stored
from chatapi.wire.protocols.responses.items import BUILT_IN
from chatapi.wire.upstream.openai_request import REASONING, upstream_body

PIXEL = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
PICTURE = {"type": "input_image", "image_url": PIXEL}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CHAT_FUNCTION = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object"}, "strict": True},
}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
HELLO = {"role": "user", "content": "hi"}
SPACE = {"type": "namespace", "name": "town", "description": "Of Paris."}


def request(protocol: str, **members: Any) -> GenerationRequest:
    body = json.dumps({"model": "m"} | members).encode()
    return requests.from_bytes(parse(body, protocol, None).content)


def sent(protocol: str, *extra: str, **members: Any) -> dict[str, Any]:
    """Return the request that an upstream gets."""
    asked = request(protocol, **members)
    body = upstream_body(asked, model="up", max_output_tokens=9, extra_parameters=frozenset(extra))
    found: dict[str, Any] = json.loads(msgspec.json.encode(body))
    return found


def messages(items: list[Any], *extra: str, **members: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sent("responses", *extra, input=items, **members)["messages"]
    return found


def refusal(**members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        request("responses", **{"input": "hi"} | members)
    return refused.value


# ---- the same meaning, the same messages


@pytest.mark.parametrize(
    ("responses", "chat"),
    [
        ({"input": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}),
        (
            {"input": [{"role": "user", "content": "hi"}], "instructions": "Be brief."},
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]},
        ),
        (
            {
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
                ]
            },
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        ),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "hi"} | BREAKPOINT,
                            {"type": "input_image", "image_url": PIXEL, "detail": "low"} | BREAKPOINT,
                            {"type": "input_file", "file_data": PDF, "filename": "a.pdf"} | BREAKPOINT,
                        ],
                    }
                ]
            },
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "hi"} | BREAKPOINT,
                            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}} | BREAKPOINT,
                            {"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}} | BREAKPOINT,
                        ],
                    }
                ]
            },
        ),
        (
            {"input": [{"role": "user", "content": "hi"}, CALL, OUTPUT], "tools": [FUNCTION]},
            {
                "messages": [
                    {"role": "user", "content": "hi"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "42"},
                ],
                "tools": [CHAT_FUNCTION],
            },
        ),
        (
            {
                "input": "hi",
                "temperature": 0.5,
                "top_p": 0.5,
                "max_output_tokens": 20,
                "metadata": {"a": "b"},
                "user": "u",
                "safety_identifier": "s",
                "prompt_cache_key": "k",
                "prompt_cache_retention": "24h",
                "service_tier": "flex",
                "tools": [FUNCTION],
                "tool_choice": {"type": "function", "name": "f"},
                "parallel_tool_calls": False,
                "reasoning": {"effort": "low"},
                "text": {
                    "format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True},
                    "verbosity": "low",
                },
                "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
                "top_logprobs": 3,
                "top_k": 4,
            },
            {
                "messages": [{"role": "user", "content": "hi"}],
                "temperature": 0.5,
                "top_p": 0.5,
                "max_completion_tokens": 20,
                "metadata": {"a": "b"},
                "user": "u",
                "safety_identifier": "s",
                "prompt_cache_key": "k",
                "prompt_cache_retention": "24h",
                "service_tier": "flex",
                "tools": [CHAT_FUNCTION],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
                "reasoning_effort": "low",
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"a": 1}, "strict": True},
                },
                "verbosity": "low",
                "logprobs": True,
                "top_logprobs": 3,
                "top_k": 4,
            },
        ),
        (
            {
                "input": "hi",
                "tools": [
                    {
                        "type": "custom",
                        "name": "c",
                        "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
                    }
                ],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "custom", "name": "c"}],
                },
                "text": {"format": {"type": "json_object"}},
            },
            {
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [
                    {
                        "type": "custom",
                        "custom": {
                            "name": "c",
                            "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}},
                        },
                    }
                ],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "required",
                        "tools": [{"type": "custom", "custom": {"name": "c"}}],
                    },
                },
                "response_format": {"type": "json_object"},
            },
        ),
    ],
    ids=["text", "instructions", "parts", "media", "calls", "parameters", "custom"],
)
def test_it_reaches_an_upstream_as_a_chat_does(responses: dict[str, Any], chat: dict[str, Any]) -> None:
    ours, theirs = sent("responses", "top_k", **responses), sent("chat.completions", "top_k", **chat)
    assert ours == theirs


def test_no_tools_and_a_choice_that_means_nothing_are_not_sent() -> None:
    body = sent("responses", input="hi", tools=[], tool_choice="auto", parallel_tool_calls=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


@pytest.mark.parametrize("text", [{}, {"format": {"type": "text"}}])
def test_plain_text_needs_no_format(text: dict[str, Any]) -> None:
    assert "response_format" not in sent("responses", input="hi", text=text)


def test_what_is_ours_is_not_sent() -> None:
    members = {"store": True, "truncation": "auto", "max_tool_calls": 3, "stream": True}
    members |= {"reasoning": {"context": "auto", "mode": "any of OpenAI's words"}}
    assert sent("responses", input="hi", **members, stream_options={"include_obfuscation": True}) == sent(
        "responses", input="hi"
    )


def test_unknown_parameters_are_ignored_by_name() -> None:
    options = {"mode": "explicit", "prewarm": False, "comparison_response_id": "resp_1"}
    asked = request("responses", input="hi", client_metadata={}, seed=1, prompt_cache_options=options)
    assert asked.ignored == ("client_metadata", "seed", "prompt_cache_options.comparison_response_id")
    assert asked.prompt_cache_options == PromptCacheOptions("explicit")


# ---- the assistant's turn


def test_a_turn_becomes_one_message() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [_thought("Hm.")]}
    second = CALL | {"call_id": "c2"}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see."}],
    }
    outputs = [OUTPUT, OUTPUT | {"call_id": "c2"}]
    (turn, *tools) = messages([reasoning, said, CALL, second, *outputs], REASONING)
    assert (turn["content"], turn["reasoning_content"]) == ("Let me see.", "Hm.")
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert [(each["role"], each["tool_call_id"]) for each in tools] == [("tool", "c1"), ("tool", "c2")]


def test_calls_of_two_turns_stay_apart() -> None:
    again = [CALL | {"call_id": "c2"}, OUTPUT | {"call_id": "c2"}]
    roles = [message["role"] for message in messages([CALL, OUTPUT, *again])]
    assert roles == ["assistant", "tool", "assistant", "tool"]


def test_reasoning_is_sent_only_to_deployments_that_take_it() -> None:
    items = [{"type": "reasoning", "summary": [_summary("Hm.")]}, {"role": "assistant", "content": "Hi."}]
    assert messages(items) == [{"role": "assistant", "content": "Hi."}]
    assert messages(items, REASONING)[0]["reasoning_content"] == "Hm."


@pytest.mark.parametrize(
    "item", [{"summary": []}, {"summary": [], "encrypted_content": "x"}, {"id": "rs_1", "summary": None}]
)
def test_reasoning_that_says_nothing_is_no_error(item: dict[str, Any]) -> None:
    items = [{"type": "reasoning"} | item, {"role": "user", "content": "hi"}]
    assert messages(items) == [{"role": "user", "content": "hi"}]


def test_pictures_of_a_tool_are_in_a_user_message_behind_all_outputs() -> None:
    picture = OUTPUT | {"output": [{"type": "input_image", "image_url": PIXEL}]}
    second = [CALL | {"call_id": "c2"}, picture, OUTPUT | {"call_id": "c2"}]
    roles = [message["role"] for message in messages([CALL, *second, {"role": "user", "content": "?"}])]
    assert roles == ["assistant", "tool", "tool", "user", "user"]


@pytest.mark.parametrize("words", ["No.", ""])
def test_a_refusal_stays_one(words: str) -> None:
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": words}]}
    assert messages([said]) == [{"role": "assistant", "content": None, "refusal": words}]


def test_an_empty_answer_stays_one() -> None:
    assert messages([{"role": "assistant", "content": []}]) == [{"role": "assistant", "content": ""}]


def test_a_namespace_is_a_part_of_the_name_that_an_upstream_sees() -> None:
    space = {"type": "namespace", "name": "town", "description": "", "tools": [FUNCTION]}
    choice = {"type": "function", "name": "f", "namespace": "town"}
    body = sent(
        "responses",
        input=[{"role": "user", "content": "hi"}, CALL | {"namespace": "town"}, OUTPUT],
        tools=[space],
        tool_choice=choice,
    )
    assert body["tools"][0]["function"]["name"] == "town__f"
    assert body["tool_choice"]["function"]["name"] == "town__f"
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "town__f"


@pytest.mark.parametrize(
    "tools",
    [[FUNCTION, {"type": "custom", "name": "c"}], [SPACE | {"tools": [FUNCTION]}, {"type": "web_search"}]],
)
def test_tools_of_an_item_are_tools_of_the_request(tools: list[dict[str, Any]]) -> None:
    """Codex sends its tools so for models that its catalog marks with `use_responses_lite`."""
    item = {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": tools}
    members: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    ours = request("responses", input=[item, HELLO], **members)
    theirs = request("responses", input=[HELLO], tools=tools, **members)
    assert (ours.tools, ours.prompt) == (theirs.tools, theirs.prompt)
    assert sent("responses", input=[item, HELLO], **members)["tool_choice"] == "required"
    assert ours.context.get("namespaces") == theirs.context.get("namespaces")
    assert ours.ignored == tuple(f"input[0].{path}" for path in theirs.ignored)


def many_functions(count: int) -> list[dict[str, Any]]:
    return [FUNCTION | {"name": f"f{number}"} for number in range(count)]


def test_there_may_be_a_thousand_tools_some_in_a_namespace() -> None:
    functions = many_functions(1_000)
    tools = [SPACE | {"tools": functions}, *functions[:24]]
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [each | {"namespace": "town"} for each in functions],
    }
    body = sent("responses", input="hi", tools=tools, tool_choice=choice)
    allowed = body["tool_choice"]["allowed_tools"]["tools"]
    assert (len(body["tools"]), len(allowed)) == (1_024, 1_000)


@pytest.mark.parametrize("first", [FUNCTION, {"type": "custom", "name": "f"}])
@pytest.mark.parametrize(("own", "rest"), [({}, ""), ({"description": "Plots."}, "\n\nPlots.")])
def test_the_first_tool_of_a_namespace_says_what_all_are_about(
    first: dict[str, Any], own: dict[str, str], rest: str
) -> None:
    space = SPACE | {"tools": [first | own, FUNCTION | {"name": "g"}]}
    offered, second = sent("responses", "custom_tools", input="hi", tools=[space])["tools"]
    about = "All tools whose names begin with 'town__': Of Paris."
    assert offered[first["type"]]["description"] == about + rest
    # Each copy of it would be charged.
    assert second["function"] == {"name": "town__g", "parameters": {"type": "object"}, "strict": True}


def test_a_search_that_agents_always_offer_is_left_out_and_named() -> None:
    offered = [FUNCTION, {"type": "web_search", "external_web_access": False}]
    assert request("responses", input="hi", tools=offered).ignored == ("tools[1]",)
    assert sent("responses", input="hi", tools=offered)["tools"] == [CHAT_FUNCTION]


@pytest.mark.parametrize(
    "kind", ["web_search_preview", "web_search_2025_08_26", "web_search_preview_2025_03_11"]
)
def test_other_versions_of_the_search_are_left_out_too(kind: str) -> None:
    assert request("responses", input="hi", tools=[{"type": kind}]).ignored == ("tools[0]",)


@pytest.mark.parametrize(
    ("choice", "plain"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "required"}, "required"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, {"type": "function", "name": "f"}),
    ],
)
def test_choices_in_the_words_of_other_clients(choice: Any, plain: Any) -> None:
    members: dict[str, Any] = {"input": "hi", "tools": [FUNCTION]}
    assert sent("responses", **members, tool_choice=choice) == sent("responses", **members, tool_choice=plain)


# ---- items of OpenAI's own tools


def test_a_search_in_an_old_conversation_is_left_out_and_named() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    items = [{"role": "user", "content": "hi"}, search, {"role": "assistant", "content": "a"}, CALL, OUTPUT]
    assert messages(items) == messages([items[0], *items[2:]])
    assert request("responses", input=items).ignored == ("input[1]",)
    body = json.dumps({"model": "m", "input": items}).encode()
    assert b"web_search_call" not in parse(body, "responses", None).state
    wrong = [*items[:2], OUTPUT]
    assert refusal(input=wrong).param == "input[2].call_id"


@pytest.mark.parametrize("kind", sorted(BUILT_IN))
def test_items_of_other_tools_are_refused_by_name(kind: str) -> None:
    refused = refusal(input=[{"role": "user", "content": "hi"}, {"type": kind, "id": "x", "output": "y"}])
    assert (refused.status, refused.code, refused.param) == (400, "unsupported_value", "input[1].type")
    assert f"'{kind}'" in refused.message


@pytest.mark.parametrize("item", [{"type": "web_search_call"}, {"type": "reasoning", "summary": []}])
def test_an_input_that_says_nothing_is_refused(item: dict[str, Any]) -> None:
    assert refusal(input=[item]).param == "input"


# ---- earlier responses


def test_references_have_to_be_resolved_first() -> None:
    with pytest.raises(UnresolvedReferences) as missing:
        request("responses", previous_response_id="resp_1", input=[{"id": "msg_1"}])
    assert (missing.value.previous, missing.value.items) == ("resp_1", {"msg_1": "input[0].id"})


def test_resolved_items_come_first_and_in_their_place() -> None:
    resolved = {
        "previous": [{"type": "message", "role": "user", "content": "one"}, CALL],
        "items": {"msg_1": {"type": "message", "role": "assistant", "content": "two"}},
    }
    body = {"previous_response_id": "resp_1", "input": [OUTPUT, {"id": "msg_1"}], "resolved": resolved}
    whole = json.dumps({"model": "m"} | body).encode()
    prompt = requests.from_bytes(parse(whole, "responses", None, is_resolved=True).content).prompt
    assert isinstance(prompt, Messages)
    kinds = [type(message) for message in prompt.messages]
    assert kinds == [UserMessage, AssistantMessage, ToolMessage, AssistantMessage]


def answered(said: Text) -> tuple[stored.State, stored.Folder]:
    """Return a stored response to instructions alone that said so."""
    asked = {"model": "m", "instructions": "Begin.", "input": [{"type": "web_search_call", "id": "ws_1"}]}
    state = stored.read_state(parse(json.dumps(asked).encode(), "responses", None).state)
    folder = stored.queued(Answer("0" * 32, 1, "m"), state)
    for delta in (Started(context=state.context), said, Finished("stop"), Usage(1, 1)):
        folder.add(delta)
    return state, folder


def resolved_texts(body: dict[str, Any], previous: bytes, items: dict[str, bytes]) -> list[str]:
    """Return the texts of the prompt of a request that refers to these."""
    pieces = stored.resolved_body([json.dumps({"model": "m"} | body).encode()], previous, items.items())
    prompt = requests.from_bytes(parse(b"".join(pieces), "responses", None, is_resolved=True).content).prompt
    return [*prompt.texts()]


MANY_VALUES = [TokenLogprob("one", 0.0, [1] * caps.MAX_VALUES)]


@pytest.mark.parametrize("logprobs", [None, MANY_VALUES], ids=["none", "many"])
def test_an_answer_to_instructions_alone_is_continued(logprobs: list[TokenLogprob] | None) -> None:
    """Its log probabilities do not count as values of the next request, which has none."""
    state, folder = answered(Text("one", logprobs=logprobs))
    continued = {"previous_response_id": "resp_1", "input": "two"}
    assert resolved_texts(continued, stored.conversation(state, folder), {}) == ["one", "two"]
    items = stored.output_items(folder)
    referring = {"input": [{"type": "item_reference", "id": id_} for id_ in items]}
    assert resolved_texts(referring, b"", items) == ["one"]


@pytest.mark.parametrize("protocol", ["responses", "responses.input_tokens"])
@pytest.mark.parametrize("resolved", [{}, {"previous": []}, {"items": {"msg_1": CALL}}])
def test_no_client_resolves_its_own_references(protocol: str, resolved: dict[str, Any]) -> None:
    """Otherwise a caller could name the responses of another one."""
    body = {"previous_response_id": "resp_1", "input": [{"id": "msg_1"}], "resolved": resolved}
    with pytest.raises(InvalidRequest) as refused:
        request(protocol, **body)
    assert refused.value.param == "resolved"


def test_what_is_kept_is_the_whole_conversation() -> None:
    parsed = parse(json.dumps({"model": "m", "input": "hi"}).encode(), "responses", None)
    kept = json.loads(parsed.state)
    assert kept["items"] == [{"type": "message", "role": "user", "content": "hi"}]
    assert kept["context"] == requests.from_bytes(parsed.content).context
    assert b"state" not in parsed.content


@pytest.mark.parametrize("members", [{"store": False}, {"input": "x" * (caps.MAX_STATE_BYTES + 1)}])
def test_a_response_that_is_not_kept_says_that_it_is_not_stored(members: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "input": "hi"} | members).encode()
    parsed = parse(body, "responses", None)
    assert parsed.state == b""
    assert requests.from_bytes(parsed.content).context["is_stored"] is False


# ---- refusals


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "hologram_call", "id": "h_1"}]}, "input[0].type"),
        (
            {
                "input": [
                    {"role": "user", "content": "hi"},
                    *(CALL | {"call_id": each} for each in "ab"),
                    *(OUTPUT | {"call_id": each, "output": [PICTURE] * 1_025} for each in "ab"),
                ]
            },
            "input[4]",
        ),
        ({"input": [{"type": "message", "role": "tool", "content": ""}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "output_text", "text": "a"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": PIXEL}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": PIXEL}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://a.b/c"}]}]},
            "input[0].content[0].file_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "?"}]}]},
            "input[0].content[0].file_data",
        ),
        ({"input": [OUTPUT]}, "input[0].call_id"),
        ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
        ({"max_output_tokens": 15}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        (
            {"tools": [{"type": "namespace", "name": "n" * 60, "tools": [FUNCTION | {"name": "f" * 9}]}]},
            "tools[0].tools[0].name",
        ),
        (
            {"tools": [SPACE | {"description": "d" * caps.MAX_DESCRIPTION_CHARS, "tools": [FUNCTION]}]},
            "tools[0].description",
        ),
        ({"tools": [SPACE | {"tools": many_functions(1_000)}, *many_functions(25)]}, "tools"),
        (
            {
                "tools": many_functions(1_000),
                "input": [{"type": "additional_tools", "tools": [{"type": "web_search"}] * 25}, HELLO],
            },
            "input[0].tools",
        ),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        (
            {"tools": [FUNCTION], "input": [{"type": "additional_tools", "tools": [FUNCTION]}, HELLO]},
            "input[0].tools[0].name",
        ),
        ({"input": [{"type": "additional_tools", "tools": [FUNCTION]}]}, "input"),
        ({"tools": [FUNCTION, FUNCTION | {"type": "custom"}]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        (
            {
                "tools": [FUNCTION],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "g"}],
                },
            },
            "tool_choice.tools[0].name",
        ),
        ({"include": ["everything"]}, "include[0]"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": []}, "context_management"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"ttl": "12h"}}, "prompt_cache_options.ttl"),
        ({"background": True, "store": False}, "background"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"truncation": "some"}, "truncation"),
    ],
)
def test_a_refusal_names_the_clients_own_parameter(members: dict[str, Any], param: str) -> None:
    refused = refusal(**members)
    assert refused.param == param
    assert refused.status == 400
    assert f"'{param}'" in refused.message or param.endswith("call_id")


def test_more_items_than_messages_are_refused() -> None:
    assert refusal(input=[{"role": "user", "content": ""}] * (caps.MAX_MESSAGES + 1)).param == "input"


def test_a_remote_picture_is_named_by_its_path() -> None:
    picture = {"type": "input_image", "image_url": "https://pictures.example/a.png"}
    found = request("responses", input=[{"role": "user", "content": [picture]}])
    assert found.remote_media_param == "input[0].content[0].image_url"


def _thought(text: str) -> dict[str, str]:
    return {"type": "reasoning_text", "text": text}


def _summary(text: str) -> dict[str, str]:
    return {"type": "summary_text", "text": text}
