"""OpenAI's own Python client and its Responses: objects, streams and their accumulator, stored state."""

import json
from typing import Any, cast

import openai
import pytest
from openai import OpenAI
from openai.types.responses import ResponseItem, ResponseOutputMessage
from pydantic import BaseModel, TypeAdapter

from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

TEXT = " the of and to in"
TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


def test_a_response(canonical: OpenAI, installation: Installation) -> None:
    response = canonical.responses.create(model="five", input="hello")
    assert response.output_text == TEXT
    assert response.usage is not None
    used = installation.receipt(response.id)["usage"]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        used["prompt_tokens"],
        used["completion_tokens"],
    )


def test_a_stream(canonical: OpenAI) -> None:
    with canonical.responses.create(model="five", input="hello", stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert events[-1].type == "response.completed"


def test_the_stream_helper(canonical: OpenAI) -> None:
    with canonical.responses.stream(model="calls-tools", input="hello", tools=[TOOL]) as stream:
        snapshots = {
            event.item_id: event.snapshot
            for event in stream
            if event.type == "response.function_call_arguments.delta"
        }
        final = stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert len({call.call_id for call in calls}) == 2
    assert snapshots == {call.id: call.arguments for call in calls if call.arguments}


class Title(BaseModel):
    title: str


def test_structured_outputs(canonical: OpenAI) -> None:
    parsed = canonical.responses.parse(model="sandbox", input="hello", text_format=Title)
    assert isinstance(parsed.output_parsed, Title)


def test_reasoning(canonical: OpenAI) -> None:
    with canonical.responses.stream(
        model="sandbox-reasoning", input="hello", reasoning={"summary": "auto"}
    ) as stream:
        summary = "".join(
            event.delta for event in stream if event.type == "response.reasoning_summary_text.delta"
        )
        reasoning, *_ = stream.get_final_response().output
    assert reasoning.type == "reasoning"
    assert reasoning.summary[0].text == summary != ""


def test_a_refusal(canonical: OpenAI) -> None:
    (item,) = canonical.responses.create(model="sandbox-refusal", input="hello").output
    assert cast(ResponseOutputMessage, item).content[0].type == "refusal"


def test_a_length(canonical: OpenAI) -> None:
    response = canonical.responses.create(model="sandbox-length", input="hello")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_conversation(canonical: OpenAI) -> None:
    first = canonical.responses.create(model="sandbox-echo", input="one")
    second = canonical.responses.create(model="sandbox-echo", input="two", previous_response_id=first.id)
    assert canonical.responses.retrieve(second.id).output_text == "two"
    items = canonical.responses.input_items.list(second.id, order="asc", limit=2)
    assert len([*items]) == 3  # the SDK asks for the second page
    canonical.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        canonical.responses.retrieve(second.id)


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
SAID: Any = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "one"}, PICTURE]},
    {"type": "reasoning"},
    {"role": "assistant", "content": "two"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "three"}]},
    {"role": "assistant", "content": [{"type": "input_text", "text": "four"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "b", "name": "shell", "input": "ls"},
    {"type": "function_call_output", "call_id": "a", "output": [PICTURE]},
    {"type": "custom_tool_call_output", "call_id": "b", "output": "seen"},
    {"role": "user", "content": "five"},
]


def test_input_items_have_what_the_published_types_require(canonical: OpenAI) -> None:
    first = canonical.responses.create(model="sandbox-reasoning", input=SAID)
    second = canonical.responses.create(model="sandbox-echo", input="six", previous_response_id=first.id)
    page = canonical.responses.input_items.with_raw_response.list(second.id, order="asc", limit=100)
    # The SDK takes an item that lacks a member for one of another type.
    items = TypeAdapter(list[ResponseItem]).validate_python(json.loads(page.text)["data"], strict=True)
    assert len(items) == len(SAID) + 3
    answers = [item for item in items if isinstance(item, ResponseOutputMessage)]
    texts = [part for item in answers for part in item.content if part.type == "output_text"]
    assert [text.text for text in texts[:3]] == ["two", "three", "four"]
    assert [text.annotations for text in texts] == [[]] * 4


def test_in_the_background(canonical: OpenAI) -> None:
    queued = canonical.responses.create(
        model="sandbox", input="[sandbox tokens=900 delay_ms=50]", background=True
    )
    assert queued.status == "queued"
    wait_for(lambda: canonical.responses.retrieve(queued.id).status == "in_progress", "it runs")
    assert canonical.responses.cancel(queued.id).status == "cancelled"
    with canonical.responses.retrieve(queued.id, stream=True, starting_after=1) as stream:
        events = list(stream)
    assert (events[0].sequence_number, events[-1].type) == (2, "response.incomplete")


def test_counting(canonical: OpenAI) -> None:
    counted = canonical.responses.input_tokens.count(model="sandbox", input="hello")
    used = canonical.responses.create(model="sandbox", input="hello").usage
    assert used is not None
    assert counted.input_tokens == used.input_tokens


def test_a_failure_in_mid_stream_raises(canonical: OpenAI) -> None:
    with pytest.raises(openai.APIError):
        list(canonical.responses.create(model="breaks-by-error", input="hello", stream=True))


def test_a_failure_before_the_first_event_has_a_status(canonical: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        canonical.responses.create(model="five", input=[cast(Any, {"role": "user", "content": 5})])
    assert refused.value.param == "input[0].content"
