"""A conversation means the same in every protocol: an upstream gets the same messages, and its answer is read
by each protocol's SDK as the same text, calls and usage.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from pydantic import TypeAdapter

from chatapi.wire import requests
from chatapi.wire.deltas import AnyDelta, Finished, Reasoning, Started, Text, ToolCall, Usage, decode, encode
from chatapi.wire.parsed_request import parse
from chatapi.wire.protocols import PROTOCOLS, Answer
from chatapi.wire.sse import Parser
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.response_cases import read_by_sdk

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


class Call(NamedTuple):
    """A call of a tool, and what the tool answers."""

    name: str
    input: dict[str, str]
    output: str

    @property
    def arguments(self) -> str:
        return msgspec.json.encode(self.input).decode()


class Turn(NamedTuple):
    """What a person says, and what the model says and calls then."""

    question: str
    answer: str
    calls: list[Call]


_calls = st.builds(Call, st.sampled_from(["f", "g"]), st.dictionaries(_texts, _texts, max_size=2), _texts)
_turns = st.lists(st.builds(Turn, _texts, _texts, st.lists(_calls, max_size=3)), max_size=4)


def chat(system: str, turns: list[Turn], last: str) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for number, turn in enumerate(turns):
        calls = [
            {
                "id": f"c{number}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(turn.calls)
        ]
        messages += [
            {"role": "user", "content": turn.question},
            {"role": "assistant", "content": turn.answer} | ({"tool_calls": calls} if calls else {}),
            *(
                {"role": "tool", "tool_call_id": f"c{number}_{index}", "content": call.output}
                for index, call in enumerate(turn.calls)
            ),
        ]
    return {"messages": [*messages, {"role": "user", "content": last}]}


def responses(system: str, turns: list[Turn], last: str) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        named = [(f"c{number}_{index}", call) for index, call in enumerate(turn.calls)]
        items += [
            {"role": "user", "content": turn.question},
            {"role": "assistant", "content": [{"type": "output_text", "text": turn.answer}]},
            *(
                {"type": "function_call", "call_id": id_, "name": call.name, "arguments": call.arguments}
                for id_, call in named
            ),
            *({"type": "function_call_output", "call_id": id_, "output": call.output} for id_, call in named),
        ]
    return {"instructions": system, "input": [*items, {"role": "user", "content": last}]}


def messages(system: str, turns: list[Turn], last: str) -> dict[str, Any]:
    said: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        named = [(f"c{number}_{index}", call) for index, call in enumerate(turn.calls)]
        calls = [
            {"type": "tool_use", "id": id_, "name": call.name, "input": call.input} for id_, call in named
        ]
        said += [
            {"role": "user", "content": [*results, {"type": "text", "text": turn.question}]},
            {"role": "assistant", "content": [{"type": "text", "text": turn.answer}, *calls]},
        ]
        results = [{"type": "tool_result", "tool_use_id": id_, "content": call.output} for id_, call in named]
    last_turn = {"role": "user", "content": [*results, {"type": "text", "text": last}]}
    return {"system": system, "messages": [*said, last_turn], "max_tokens": 9}


def sent(protocol: str, body: dict[str, Any]) -> Any:
    """Return the messages that an upstream gets."""
    content = parse(json.dumps({"model": "m"} | body).encode(), protocol, None).content
    asked = upstream_body(
        requests.from_bytes(content), model="up", max_output_tokens=9, extra_parameters=frozenset()
    )
    return json.loads(msgspec.json.encode(asked))["messages"]


@given(_texts, _turns, _texts)
@example("s", [Turn("q", "a", [Call("f", {}, "0")] * 1_000)], "l")
def test_a_conversation_is_the_same_for_an_upstream(system: str, turns: list[Turn], last: str) -> None:
    expected = sent("chat.completions", chat(system, turns, last))
    assert sent("responses", responses(system, turns, last)) == expected
    assert sent("messages", messages(system, turns, last)) == expected


# ---- answers


class Read(NamedTuple):
    """What a client has of an answer."""

    text: str
    calls: dict[str, tuple[str, Any]]
    """The name and the arguments of each call, by its id."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    written_tokens: int
    reasoning_tokens: int


def read_chat(data: bytes) -> Read:
    """Return what openai-python's accumulator makes of a stream of chunks."""
    state: ChatCompletionStreamState[object] = ChatCompletionStreamState()
    for event in Parser().feed(data):
        if event.data != b"[DONE]":
            state.handle_chunk(ChatCompletionChunk.model_validate_json(event.data))
    completion = state.get_final_completion()
    message, usage = completion.choices[0].message, completion.usage
    assert usage is not None
    calls: Any = message.tool_calls or ()
    details, output = usage.prompt_tokens_details, usage.completion_tokens_details
    assert details is not None
    assert output is not None
    return Read(
        message.content or "",
        {call.id: (call.function.name, json.loads(call.function.arguments)) for call in calls},
        usage.prompt_tokens,
        usage.completion_tokens,
        details.cached_tokens or 0,
        details.cache_write_tokens or 0,
        output.reasoning_tokens or 0,
    )


def read_response(data: bytes) -> Read:
    """Return what openai-python's accumulator makes of a stream of a response's events."""
    response = read_by_sdk(data)
    calls = [item for item in response.output if item.type == "function_call"]
    usage = response.usage
    return Read(
        response.output_text,
        {call.call_id: (call.name, json.loads(call.arguments)) for call in calls},
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens_details.cached_tokens,
        usage.input_tokens_details.cache_write_tokens,
        usage.output_tokens_details.reasoning_tokens,
    )


_message_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def read_message(data: bytes) -> Read:
    """Return what Anthropic's accumulator makes of a stream of a message's events."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in Parser().feed(data):
        message = accumulate_event(
            event=_message_event.validate_json(event.data), current_snapshot=message, json_bufs=buffers
        )
    assert isinstance(message, Message)
    usage = message.usage
    assert usage.output_tokens_details is not None
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return Read(
        "".join(block.text for block in message.content if block.type == "text"),
        {block.id: (block.name, block.input) for block in message.content if block.type == "tool_use"},
        usage.input_tokens + read + written,
        usage.output_tokens,
        read,
        written,
        usage.output_tokens_details.thinking_tokens,
    )


READERS: dict[str, Callable[[bytes], Read]] = {
    "chat.completions": read_chat,
    "responses": read_response,
    "messages": read_message,
}


@st.composite
def _answers(draw: st.DrawFn) -> tuple[list[AnyDelta], Read]:
    """Texts, thoughts and calls in any order, the calls' pieces interleaved; and what they say."""
    calls = draw(st.lists(_calls, max_size=3))
    said = draw(st.lists(st.builds(Text, _texts) | st.builds(Reasoning, _texts), max_size=5))
    order = draw(st.permutations([*range(len(calls)), *range(len(calls)), *(None for _ in said)]))
    texts, begun, content = iter(said), list[int](), list[AnyDelta]()
    for turn in order:
        if turn is None:
            content.append(next(texts))
        elif turn in begun:
            arguments = calls[turn].arguments
            content.append(ToolCall(begun.index(turn), arguments[len(arguments) // 2 :]))
        else:  # calls are numbered as they begin
            arguments = calls[turn].arguments
            content.append(
                ToolCall(len(begun), arguments[: len(arguments) // 2], f"call_{turn}", calls[turn].name)
            )
            begun.append(turn)
    prompt, completion = draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6))
    cached = draw(st.integers(0, prompt))
    written, reasoning = draw(st.integers(0, prompt - cached)), draw(st.integers(0, completion))
    usage = Usage(prompt, completion, cached, reasoning, cache_write_tokens=written)
    shown = {f"call_{number}": (call.name, call.input) for number, call in enumerate(calls)}
    text = "".join(delta.text for delta in content if isinstance(delta, Text))
    end: list[AnyDelta] = [Finished("tool_calls" if calls else "stop"), usage]
    return [Started(), *content, *end], Read(text, shown, prompt, completion, cached, written, reasoning)


def streamed(protocol: str, deltas: Sequence[AnyDelta]) -> bytes:
    """The stream of these deltas, which have crossed Redis."""
    encoder = PROTOCOLS[protocol].dialect("openai").encoder
    assert encoder is not None
    answer = Answer("0193ba5e0a7c7d1e8c3b5f2a9d4e6c80", 1_700_000_000, "m", include_usage=True)
    return encoder(answer).encode(decode(encode(deltas)))


@settings(max_examples=50)  # the first event of each SDK takes a second
@given(_answers())
def test_an_answer_is_the_same_for_each_sdk(answer: tuple[list[AnyDelta], Read]) -> None:
    deltas, expected = answer
    for protocol, read in READERS.items():
        assert read(streamed(protocol, deltas)) == expected, protocol
