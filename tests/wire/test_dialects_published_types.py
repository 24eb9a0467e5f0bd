"""OpenAI's published types, as its Python SDK has them, validate what we send, strictly; where they can't, it
is named here.
"""

import json
from typing import Any, Literal

import pytest
from openai._models import construct_type
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion_choice import Logprobs
from openai.types.shared import ErrorObject
from pydantic import ValidationError

from chatapi.wire.protocols import chat
from chatapi.wire.protocols.chat import STYLES as DIALECTS
from tests.wire.dialect_cases import CASES, CHATS, COMPLETIONS, FAILURE, Case

STREAMED_CUSTOM_TOOLS = "tool-calls"
"""The types of chunks know function calls only, those of messages custom tools as well."""
ECHOED = "completion-echo-logprobs"


class EchoedLogprobs(Logprobs):
    """The published type has a probability for each token; the first one of an echoed prompt has none, and
    OpenAI's own answers and vLLM's have null for it.
    """

    token_logprobs: list[float | None] | None = None  # type: ignore[assignment]
    top_logprobs: list[dict[str, float] | None] | None = None  # type: ignore[assignment]


class EchoedChoice(CompletionChoice):
    logprobs: EchoedLogprobs | None = None


class EchoedCompletion(Completion):
    choices: list[EchoedChoice]  # type: ignore[assignment]


class StreamedChoice(EchoedChoice):
    """The published type says that the finish_reason of a text completion is never null; OpenAI's own streams
    say null until the end.
    """

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class StreamedCompletion(Completion):
    choices: list[StreamedChoice]  # type: ignore[assignment]


def documents(case: Case, dialect: str) -> list[dict[str, Any]]:
    return [
        json.loads(line[6:])
        for line in case.stream(dialect).decode().split("\n")
        if line.startswith("data: {")
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", [name for name in CHATS if name != STREAMED_CUSTOM_TOOLS])
def test_every_chat_chunk_is_of_the_published_type(dialect: str, case: str) -> None:
    for document in documents(CHATS[case], dialect):
        if "error" in document:
            ErrorObject.model_validate_json(json.dumps({"param": None} | document["error"]), strict=True)
            continue
        if dialect == "bitseek":  # as its documents say
            assert document.pop("object") == "chat.completion"
            document["object"] = "chat.completion.chunk"
        ChatCompletionChunk.model_validate_json(json.dumps(document), strict=True)
        assert all("finish_reason" in choice for choice in document["choices"])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", COMPLETIONS)
def test_every_text_chunk_is_of_the_published_type(dialect: str, case: str) -> None:
    for document in documents(COMPLETIONS[case], dialect):
        if "error" not in document:
            StreamedCompletion.model_validate_json(json.dumps(document), strict=True)
            assert all("logprobs" in choice for choice in document["choices"])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", [name for name, case in CASES.items() if not case.has_failed])
def test_every_body_is_of_the_published_type(dialect: str, case: str) -> None:
    text = EchoedCompletion if case == ECHOED else Completion
    published: type[ChatCompletion] | type[Completion] = text if CASES[case].is_text else ChatCompletion
    published.model_validate_json(CASES[case].body(dialect), strict=True)


def said(completion: Any) -> Any:
    """Return the content and the usage of a completion, without what the SDK fills in."""
    # Without audio: the SDK strings pieces of base64 together, each with its padding.
    names = ("content", "refusal", "reasoning_content", "annotations")
    choices = [
        (
            choice["index"],
            choice["finish_reason"],
            choice.get("logprobs"),
            {name: choice["message"].get(name) or "" for name in names},
            [
                (call["id"], call["type"], call[call["type"]]["name"], arguments(call[call["type"]]))
                for call in choice["message"].get("tool_calls") or ()
            ],
        )
        for choice in completion["choices"]
    ]
    return choices, completion.get("usage")


def arguments(called: dict[str, str]) -> str:
    return called["arguments"] if "arguments" in called else called["input"]


@pytest.mark.parametrize("dialect", ["openai", "opentoken"])
@pytest.mark.parametrize("case", [name for name, case in CHATS.items() if not case.has_failed])
def test_the_sdk_accumulates_a_stream_to_the_body(dialect: str, case: str) -> None:
    state: ChatCompletionStreamState[object] = ChatCompletionStreamState()
    for document in documents(CHATS[case], dialect):
        state.handle_chunk(construct_type(type_=ChatCompletionChunk, value=document))  # type: ignore[arg-type]
    read = said(state.current_completion_snapshot.to_dict())
    whole = said(json.loads(CHATS[case].body(dialect)))
    is_usage_told = dialect == "opentoken" or "include_usage" in CHATS[case].answer
    assert read == (whole if is_usage_told else (whole[0], None))


@pytest.mark.parametrize("dialect", ["openai", "opentoken"])
@pytest.mark.parametrize("case", ["parallel-tool-calls", "tool-call-without-arguments"])
def test_the_sdk_decodes_each_call_of_a_strict_tool(dialect: str, case: str) -> None:
    """It decodes a call's arguments when the next call begins."""
    called = json.loads(CHATS[case].body(dialect))["choices"][0]["message"]["tool_calls"]
    strict = [
        {"type": "function", "function": {"name": call["function"]["name"], "strict": True}}
        for call in called
    ]
    state: ChatCompletionStreamState[object] = ChatCompletionStreamState(input_tools=strict)  # type: ignore[arg-type]
    for document in documents(CHATS[case], dialect):
        state.handle_chunk(construct_type(type_=ChatCompletionChunk, value=document))  # type: ignore[arg-type]
    calls = state.get_final_completion().choices[0].message.tool_calls or ()
    assert [call.function.parsed_arguments for call in calls] == [
        json.loads(call["function"]["arguments"]) for call in called
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_body_is_of_the_published_type(dialect: str) -> None:
    envelope = json.loads(chat.CHAT.dialects[dialect].envelope(FAILURE).body)
    assert (
        ErrorObject.model_validate_json(json.dumps(envelope.pop("error")), strict=True).code == FAILURE.code
    )
    assert envelope == {}


def test_the_exceptions_are_still_needed() -> None:
    custom = next(
        document
        for document in documents(CHATS[STREAMED_CUSTOM_TOOLS], "openai")
        if '"custom"' in json.dumps(document)
    )
    with pytest.raises(ValidationError):
        ChatCompletionChunk.model_validate_json(json.dumps(custom), strict=True)
    with pytest.raises(ValidationError):
        Completion.model_validate_json(COMPLETIONS[ECHOED].body("openai"), strict=True)
    with pytest.raises(ValidationError):
        Completion.model_validate_json(
            json.dumps(documents(COMPLETIONS["completion"], "openai")[0]), strict=True
        )
