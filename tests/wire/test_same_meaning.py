"""A conversation means the same in every protocol: an upstream gets the same messages."""

import json
from typing import Any, NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from chatapi.wire import requests
from chatapi.wire.parsed_request import parse
from chatapi.wire.upstream_request import upstream_body

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
def test_a_conversation_is_the_same_for_an_upstream(system: str, turns: list[Turn], last: str) -> None:
    expected = sent("chat.completions", chat(system, turns, last))
    assert sent("responses", responses(system, turns, last)) == expected
    assert sent("messages", messages(system, turns, last)) == expected
