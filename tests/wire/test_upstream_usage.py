"""The usage that upstreams tell, wherever in the stream they tell it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapi.wire.deltas import Finished, Started, Text, Usage
from chatapi.wire.sse import Event
from chatapi.wire.upstream.chunks import ChunkReader
from tests.wire.upstream_events import DONE, STOP, chunk, event, new_reader, read


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


@pytest.mark.parametrize(
    ("completion", "reasoning", "total", "counted"),
    [
        pytest.param(2, 317, 331, Usage(12, 319, None, 317), id="apart, as xAI's grok-3-mini has it"),
        pytest.param(0, 60, 72, Usage(12, 60, None, 60), id="apart, without an answer"),
        pytest.param(319, 317, 331, Usage(12, 319, None, 317), id="in the completion"),
        pytest.param(2, 317, 14, Usage(12, 2), id="left out of the total"),
        pytest.param(2, 0, 14, Usage(12, 2, None, 0), id="none"),
        pytest.param(2, -1, 13, Usage(12, 2), id="negative"),
        pytest.param(2, 317, "331", Usage(12, 2), id="a total of another type"),
        pytest.param(2, 317, None, Usage(12, 2), id="no total"),
        pytest.param(2, None, 331, Usage(12, 319, None, 317), id="in the total only, as Gemini has it"),
        pytest.param(2, None, 14, Usage(12, 2), id="not known"),
        pytest.param(2, None, 13, Usage(12, 2), id="a total that is less"),
        pytest.param(2, None, "331", Usage(12, 2), id="a total of another type, alone"),
    ],
)
def test_reasoning_that_is_counted_apart_from_the_completion_is_added(
    completion: int, reasoning: int | None, total: Any, counted: Usage
) -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    usage = {"prompt_tokens": 12, "completion_tokens": completion, "total_tokens": total, **details}
    assert read(STOP, event({"choices": [], "usage": usage}), DONE)[-1] == counted


def test_a_total_with_a_cached_part_beside_the_prompt_says_nothing_of_reasoning() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 104, "cache_read_input_tokens": 90}
    assert read(STOP, event({"choices": [], "usage": usage}), DONE)[-1] == Usage(12, 2)


@pytest.mark.parametrize(
    ("early", "kept"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 1}, Usage(3, 0)),
        ({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 99}, Usage(3, 0)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, Usage(3, 0, 2)),
        ({"input_tokens": 3, "cache_creation_input_tokens": 2}, Usage(5, 0, cache_write_tokens=2)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": 1 << 70, "completion_tokens": 0}, None),
        ({"completion_tokens": 1}, None),
        (None, None),
    ],
)
def test_what_it_says_of_the_prompt_before_the_answer_is_kept(
    early: dict[str, Any] | None, kept: Usage | None
) -> None:
    first = event({"choices": [], "usage": early})
    assert read(first, chunk({"content": "a"}), STOP)[0] == Started(prompt_usage=kept)
    assert read(chunk({"content": "a"}, usage=early), STOP)[0] == Started(prompt_usage=kept)
    assert read(chunk({"content": "a"}), first, STOP)[0] == Started()


def test_of_several_prompts_an_early_usage_may_be_that_of_one() -> None:
    reader = ChunkReader(choices=2, max_chunks=9, is_text=True, prompts=2)
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    choices = [{"index": 0, "text": "a"}]
    assert reader.read([event({"choices": choices, "usage": usage})]) == [Started(), Text("a")]


def test_a_usage_of_zero_stays_zero_and_none_stays_none() -> None:
    assert read(STOP, event({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}))[-1] == Usage(0, 0)
    assert read(STOP, DONE)[-1] == Finished("stop")


def test_usage_after_done_is_ignored() -> None:
    reader = new_reader()
    reader.read([STOP, DONE, event({"usage": {"prompt_tokens": 3, "completion_tokens": 1}})])
    assert reader.is_done
    assert reader.end() == []


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": 3}, {"prompt_tokens": -1, "completion_tokens": 2}])
def test_a_usage_that_cannot_be_is_no_usage(usage: dict[str, int]) -> None:
    assert read(STOP, event({"usage": usage}))[-1] == Finished("stop")


def test_a_usage_that_is_far_too_large_is_left_to_the_settlement() -> None:
    for many in (1 << 40, 1 << 70):
        assert read(STOP, event({"usage": {"prompt_tokens": 1, "completion_tokens": many}}))[-1] == Usage(
            1, many
        )


def test_usage_details_are_kept_when_they_can_be_parts_of_the_whole() -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 9, "audio_tokens": 0},
    }
    assert read(STOP, event({"usage": {"prompt_tokens": 3, "completion_tokens": 1, **details}}))[-1] == Usage(
        3, 1, 2, None
    )


BY_TIME = {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 5}},
            Usage(9, 4, 1, cache_write_tokens=5),
            id="openai",
        ),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1, "created_cache_tokens": 5}},
            Usage(9, 4, 1, cache_write_tokens=5),
            id="vllm",
        ),
        pytest.param({"prompt_tokens": 9, "cached_tokens": 4}, Usage(9, 4, 4), id="kimi"),
        pytest.param({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, Usage(9, 4, 4), id="deepseek"),
        pytest.param(
            {
                "prompt_tokens": 9,
                "cache_read_input_tokens": 1,
                "cache_creation_input_tokens": 5,
                "cache_creation": BY_TIME,
            },
            Usage(9, 4, 1, cache_write_tokens=5, cache_write_1h_tokens=3),
            id="anthropic beside prompt_tokens",
        ),
        pytest.param(
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {
                    "cached_tokens": 1,
                    "cache_creation_tokens": 5,
                    "cache_creation_token_details": BY_TIME,
                },
                "cache_read_input_tokens": 1,
                "cache_creation_input_tokens": 5,
            },
            Usage(9, 4, 1, cache_write_tokens=5, cache_write_1h_tokens=3),
            id="litellm",
        ),
        pytest.param(
            {
                "input_tokens": 3,
                "output_tokens": 4,
                "cache_read_input_tokens": 1,
                "cache_creation": BY_TIME,
            },
            Usage(9, 4, 1, cache_write_tokens=5, cache_write_1h_tokens=3),
            id="anthropic, whose input is the uncached part",
        ),
        pytest.param(
            {"input_tokens": 9, "cache_read_input_tokens": -5},
            Usage(9, 4),
            id="anthropic, negative",
        ),
        pytest.param(
            {"prompt_tokens": 9, "cache_creation": None, "prompt_tokens_details": {"cache_write_tokens": 0}},
            Usage(9, 4, cache_write_tokens=0),
            id="zero is known",
        ),
        pytest.param(
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 5}},
            Usage(9, 4, 5),
            id="more than the prompt",
        ),
        pytest.param(
            {"prompt_tokens": 9, "cache_creation_input_tokens": -1, "cache_creation": BY_TIME},
            Usage(9, 4),
            id="negative",
        ),
    ],
)
def test_the_kinds_of_input_are_read_under_every_name(counts: dict[str, Any], expected: Usage) -> None:
    usage = {"completion_tokens": 4, **counts}
    assert read(STOP, event({"usage": usage}))[-1] == expected


token_counts = st.none() | st.integers(-2, 20)


@given(
    st.integers(0, 20),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("cached_tokens", "cache_write_tokens"), token_counts)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(BY_TIME, token_counts)),
)
def test_the_kinds_of_input_never_exceed_the_prompt(
    prompt: int, details: dict[str, int | None], by_time: dict[str, int | None]
) -> None:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": 1,
        "prompt_tokens_details": details,
        "cache_creation": by_time,
    }
    read_usage = read(STOP, event({"usage": usage}))[-1]
    assert isinstance(read_usage, Usage)
    assert read_usage.uncached_tokens >= 0
    assert 0 <= (read_usage.cache_write_1h_tokens or 0) <= (read_usage.cache_write_tokens or 0)
    assert read_usage.prompt_tokens == prompt


EARLY = {"prompt_tokens": 3, "completion_tokens": 0}
LATE = {"prompt_tokens": 3, "completion_tokens": 1}
TOOL_CALLS = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    "said", [{"content": "a"}, {"reasoning": "a"}, {"refusal": "a"}, {"tool_calls": TOOL_CALLS}]
)
def test_a_usage_does_not_count_what_comes_after_it(said: dict[str, Any]) -> None:
    early = [chunk({"role": "assistant"}, usage=EARLY), chunk(said)]
    ended = Finished("tool_calls" if "tool_calls" in said else "stop")
    assert read(*early, STOP, DONE)[-1] == ended
    assert read(*early, chunk(finish_reason="stop", usage=LATE), DONE)[-1] == Usage(3, 1)
    assert read(chunk(usage=EARLY), chunk(said, "stop", usage={}), DONE)[-1] == ended
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
    "usage",
    [
        {**LATE, "prompt_tokens": 3.0},
        {**LATE, "completion_tokens": "1"},
        {**LATE, "prompt_tokens_details": []},
        {**LATE, "cache_creation": 1},
        "none",
        [LATE],
        1,
    ],
)
def test_a_usage_of_other_types_is_none_and_no_error(usage: object) -> None:
    said = [Started(), Text("a"), Finished("stop")]
    assert (
        read(chunk({"content": "a"}, usage=usage), STOP, event({"choices": [], "usage": usage}), DONE) == said
    )
    assert read(chunk({"content": "a"}, usage=LATE), STOP, event({"choices": [], "usage": usage}), DONE) == [
        Started(prompt_usage=Usage(3, 0)),
        *said[1:],
        Usage(3, 1),
    ]


# ---- of several choices


def usage_of(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def of(
    index: int, delta: dict[str, Any], finish_reason: str | None = None, usage: dict[str, Any] | None = None
) -> Event:
    return event(
        {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}], "usage": usage}
    )


def says(index: int, words: int = 1) -> list[Event]:
    return [of(index, {"content": " the"})] * words


def ends(index: int, usage: dict[str, Any] | None = None) -> Event:
    return of(index, {}, "stop", usage)


def alone(usage: dict[str, Any]) -> Event:
    return event({"choices": [], "usage": usage})


def heard(*events: Event, choices: int = 2, prompts: int = 1) -> Usage | None:
    reader = ChunkReader(choices=choices, max_chunks=1_000, prompts=prompts)
    reader.read(events)
    usage = next(iter(reader.end()), None)
    assert usage is None or isinstance(usage, Usage)
    return usage


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [*says(0, 3), *says(1, 5), ends(0), alone(usage_of(9, 4)), ends(1), alone(usage_of(9, 6))],
            id="interleaved",
        ),
        pytest.param(
            [*says(0, 3), ends(0), alone(usage_of(9, 4)), *says(1, 5), ends(1), alone(usage_of(9, 6))],
            id="one by one",
        ),
        pytest.param(
            [*says(1, 5), *says(0, 3), ends(1), alone(usage_of(9, 6)), ends(0), alone(usage_of(9, 4))],
            id="the longer one first",
        ),
        pytest.param(
            [*says(0, 3), *says(1, 5), ends(0, usage_of(9, 4)), ends(1, usage_of(9, 6))], id="with the end"
        ),
        pytest.param(
            [*says(0), *says(1), ends(0), alone(usage_of(9, 4)), ends(1), alone(usage_of(9, 6))],
            id="long chunks",
        ),
        pytest.param(
            [
                *says(0, 3),
                ends(0),
                event({"choices": []}),
                alone(usage_of(9, 4)),
                *says(1, 5),
                ends(1),
                alone(usage_of(9, 6)),
            ],
            id="pings",
        ),
    ],
)
def test_usages_of_each_choice_are_added_and_the_prompt_counts_once(events: list[Event]) -> None:
    assert heard(*events, DONE) == Usage(9, 10, is_added=True)
    assert heard(*events) == Usage(9, 10, is_added=True)


def test_details_are_added_too_and_each_prompt_of_a_text_request_counts() -> None:
    events = [
        event
        for index in range(4)
        for event in (*says(index, 3), ends(index, usage_of(9 + index // 2, 4, index // 2)))
    ]
    assert heard(*events, DONE, choices=4, prompts=2) == Usage(9 + 10, 16, 0 + 1, is_added=True)
    assert heard(*events, DONE, choices=4) == Usage(10, 16, 1, is_added=True)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*says(0, 3), *says(1, 5), ends(0), ends(1), alone(usage_of(9, 8))], id="once"),
        pytest.param(
            [*says(0, 3), *says(1, 5), ends(0), ends(1), alone(usage_of(9, 8)), alone(usage_of(9, 8))],
            id="twice",
        ),
        pytest.param(
            [*says(0, 3), *says(1, 5), ends(0), ends(1, usage_of(9, 8)), alone(usage_of(9, 8))],
            id="with the end and again",
        ),
        pytest.param(
            [
                *says(0, 3),
                *says(1, 5),
                ends(0, usage_of(9, 3)),
                ends(1, usage_of(9, 5)),
                alone(usage_of(9, 8)),
            ],
            id="pieces and the whole",
        ),
        pytest.param(
            [*says(0, 3), ends(0, usage_of(9, 3)), *says(1, 5), ends(1, usage_of(9, 8))], id="the sum so far"
        ),
        pytest.param(
            [
                *says(0, 3),
                ends(0),
                alone(usage_of(9, 4)),
                *says(1, 5),
                ends(1),
                alone(usage_of(9, 10)),
                alone(usage_of(9, 8)),
            ],
            id="then the whole",
        ),
    ],
)
def test_a_usage_of_all_choices_is_not_added(events: list[Event]) -> None:
    assert heard(*events, DONE) == Usage(9, 8)


def test_a_usage_with_every_chunk_is_of_its_choice_and_the_whole_comes_last() -> None:
    """vLLM sends such usage with `continuous_usage_stats`."""
    said = [of(index, {"content": " the"}, usage=usage_of(9, n)) for n in range(1, 4) for index in (0, 1)]
    events = [*said, ends(0, usage_of(9, 4)), ends(1, usage_of(9, 4))]
    assert heard(*events, alone(usage_of(9, 8)), DONE) == Usage(9, 8)
    assert heard(*events, DONE) == Usage(9, 8, is_added=True)


def test_what_only_some_choices_tell_is_as_it_was_last() -> None:
    assert heard(*says(0, 3), ends(0), alone(usage_of(9, 4)), *says(1, 5), ends(1), DONE) is None
    assert heard(*says(0, 3), ends(0), *says(1, 5), ends(1), alone(usage_of(9, 8)), DONE) == Usage(9, 8)
