"""The usage that upstreams tell, wherever in the stream they tell it."""

from typing import Any

import pytest

from chatapi.wire.deltas import Finished, Started, Text, Usage
from chatapi.wire.sse import Event
from tests.wire.test_upstream_chunks import DONE, STOP, chunk, event, new_reader, read


@pytest.mark.parametrize(
    "events",
    [
        [STOP, event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}), DONE],
        [chunk(finish_reason="stop", usage={"prompt_tokens": 3, "completion_tokens": 1}), DONE],
        [
            chunk({"content": "a"}, usage={"prompt_tokens": 3, "completion_tokens": 0}),
            chunk(finish_reason="stop", usage={"prompt_tokens": 3, "completion_tokens": 1}),
            event({"choices": [], "usage": None}),
        ],
    ],
)
def test_usage_comes_alone_or_with_the_end_or_with_every_chunk(events: list[Event]) -> None:
    assert read(*events)[-1] == Usage(3, 1)


def test_a_usage_of_zero_stays_zero_and_none_stays_none() -> None:
    assert read(STOP, event({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}))[-1] == Usage(0, 0)
    assert read(STOP, DONE)[-1] == Finished("stop")


def test_usage_after_done_is_ignored() -> None:
    reader = new_reader()
    reader.read([STOP, DONE, event({"usage": {"prompt_tokens": 3, "completion_tokens": 1}})])
    assert reader.is_done
    assert reader.end() == []


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": 3}, {"prompt_tokens": -1, "completion_tokens": 2}, {"prompt_tokens": 1, "completion_tokens": 1 << 40}]
)
def test_a_usage_that_cannot_be_is_no_usage(usage: dict[str, int]) -> None:
    assert read(STOP, event({"usage": usage}))[-1] == Finished("stop")


def test_usage_details_are_kept_when_they_can_be_parts_of_the_whole() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 9, "audio_tokens": 0}}
    assert read(STOP, event({"usage": {"prompt_tokens": 3, "completion_tokens": 1, **details}}))[-1] == Usage(3, 1, 2, None)


EARLY = {"prompt_tokens": 3, "completion_tokens": 0}
LATE = {"prompt_tokens": 3, "completion_tokens": 1}
TOOL_CALLS = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize("said", [{"content": "a"}, {"reasoning": "a"}, {"refusal": "a"}, {"tool_calls": TOOL_CALLS}])
def test_a_usage_does_not_count_what_comes_after_it(said: dict[str, Any]) -> None:
    early = [chunk({"role": "assistant"}, usage=EARLY), chunk(said)]
    assert read(*early, STOP, DONE)[-1] == Finished("stop")
    assert read(*early, chunk(finish_reason="stop", usage=LATE), DONE)[-1] == Usage(3, 1)
    assert read(chunk(usage=EARLY), chunk(said, "stop", usage={}), DONE)[-1] == Finished("stop")
    assert read(chunk(said, usage=LATE), STOP, DONE)[-1] == Usage(3, 1)


@pytest.mark.parametrize(
    "nothing",
    [
        chunk({"content": ""}),
        chunk({"annotations": [{"type": "url_citation"}]}),
        chunk(usage={}),
        event({"choices": [], "usage": {"prompt_tokens": 3}}),
        event({"choices": [], "usage": None}),
    ],
)
def test_a_usage_stays_when_nothing_is_said_after_it(nothing: Event) -> None:
    assert read(chunk({"content": "a"}, usage=LATE), nothing, STOP, nothing, DONE)[-1] == Usage(3, 1)


@pytest.mark.parametrize(
    "usage", [{**LATE, "prompt_tokens": 3.0}, {**LATE, "completion_tokens": "1"}, {**LATE, "prompt_tokens_details": []}, "none", [LATE], 1]
)
def test_a_usage_of_other_types_is_none_and_no_error(usage: object) -> None:
    said = [Started(), Text("a"), Finished("stop")]
    assert read(chunk({"content": "a"}, usage=usage), STOP, event({"choices": [], "usage": usage}), DONE) == said
    assert read(chunk({"content": "a"}, usage=LATE), STOP, event({"choices": [], "usage": usage}), DONE) == [*said, Usage(3, 1)]
