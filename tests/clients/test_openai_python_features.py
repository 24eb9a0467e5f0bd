"""OpenAI's own Python client and what models can do: structured outputs, tools, several choices, log
probabilities.
"""

import json
from typing import Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import ChatCompletionMessageFunctionToolCall as FunctionCall
from pydantic import BaseModel

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello [sandbox tokens=6]"}]
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Event(BaseModel):
    """Something to extract from a text."""

    title: str
    kind: Literal["talk", "walk"]
    guests: list[str]


class FindEvents(BaseModel):
    """Look events up."""

    city: str
    most: int


def test_an_answer_is_parsed_into_a_model(client: OpenAI) -> None:
    completion = client.chat.completions.parse(model="sandbox", messages=HELLO, response_format=Event)
    event = completion.choices[0].message.parsed
    assert isinstance(event, Event)
    assert event.kind in {"talk", "walk"}


def test_a_stream_is_parsed_into_a_model(client: OpenAI) -> None:
    with client.chat.completions.stream(model="sandbox", messages=HELLO, response_format=Event) as stream:
        snapshots = [event.parsed for event in stream if event.type == "content.delta"]
        completion = stream.get_final_completion()
    assert len(snapshots) > 1
    assert isinstance(completion.choices[0].message.parsed, Event)


async def test_the_async_client_parses_too(async_client: AsyncOpenAI) -> None:
    completion = await async_client.chat.completions.parse(
        model="sandbox", messages=HELLO, response_format=Event
    )
    assert isinstance(completion.choices[0].message.parsed, Event)


def test_a_tools_arguments_are_parsed(client: OpenAI) -> None:
    tool = openai.pydantic_function_tool(FindEvents)
    completion = client.chat.completions.parse(model="sandbox-tool-call", messages=HELLO, tools=[tool])
    (call,) = completion.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, FindEvents)


def test_an_answer_that_was_cut_is_not_parsed(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="sandbox", messages=HELLO, response_format=Event, max_tokens=2)


def test_an_answer_that_was_filtered_is_not_parsed(canonical: OpenAI) -> None:
    with pytest.raises(openai.ContentFilterFinishReasonError):
        canonical.chat.completions.parse(
            model="sandbox-content-filter", messages=HELLO, response_format=Event
        )


def test_a_refusal_is_no_content(client: OpenAI) -> None:
    message = client.chat.completions.parse(model="sandbox-refusal", messages=HELLO).choices[0].message
    assert (message.content, bool(message.refusal)) == (None, True)
    with client.chat.completions.stream(model="sandbox-refusal", messages=HELLO) as stream:
        assert stream.get_final_completion().choices[0].message.refusal == message.refusal


def test_a_tools_answer_leads_to_an_answer(client: OpenAI) -> None:
    asking: list[ChatCompletionMessageParam] = [*HELLO]
    first = client.chat.completions.create(
        model="sandbox-tool-call", messages=asking, tools=[WEATHER]
    ).choices[0]
    (call,) = first.message.tool_calls or []
    assert isinstance(call, FunctionCall)
    assert (first.finish_reason, call.function.name, json.loads(call.function.arguments).keys()) == (
        "tool_calls",
        "weather",
        {"city"},
    )
    assistant: ChatCompletionMessageParam = first.message.to_dict()  # type: ignore[assignment]
    asking += [assistant, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    second = client.chat.completions.create(
        model="sandbox-tool-call", messages=asking, tools=[WEATHER]
    ).choices[0]
    assert (second.finish_reason, bool(second.message.content)) == ("stop", True)


def test_the_stream_helper_puts_tool_calls_together(client: OpenAI) -> None:
    with client.chat.completions.stream(model="calls-tools", messages=HELLO, n=2) as stream:
        completion = stream.get_final_completion()
    for choice in completion.choices:
        calls = choice.message.tool_calls or []
        assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
            ("call_up_0", "lookup", '{"city":" the"}'),
            ("call_up_1", "lookup", '{"city":" the"}'),
        ]


def test_two_choices_streamed_are_the_two_in_one_piece(client: OpenAI) -> None:
    completion = client.chat.completions.create(model="sandbox", messages=HELLO, n=2)
    texts = {0: "", 1: ""}
    with client.chat.completions.create(model="sandbox", messages=HELLO, n=2, stream=True) as stream:
        for choice in (choice for chunk in stream for choice in chunk.choices):
            texts[choice.index] += choice.delta.content or ""
    assert {choice.index: choice.message.content for choice in completion.choices} == texts
    assert texts[0] != texts[1]


def test_log_probabilities_spell_the_text(client: OpenAI) -> None:
    choice = client.chat.completions.create(
        model="sandbox", messages=HELLO, logprobs=True, top_logprobs=2
    ).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * 6
    with client.chat.completions.stream(
        model="sandbox", messages=HELLO, logprobs=True, top_logprobs=2
    ) as stream:
        streamed = stream.get_final_completion().choices[0].logprobs
    assert streamed is not None
    assert streamed.content == choice.logprobs.content
