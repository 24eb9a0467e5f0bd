"""1. The deltas of the release before are read, and it reads ours: both run while an upgrade goes on.
2. Deltas describe themselves: what of them is counted, how long they are, how they are cut and joined.
"""

from typing import Any, get_args

import msgspec
import pytest

from chatapi.wire import deltas
from chatapi.wire.deltas import Content, Delta, Reasoning, Refusal, Text, TokenLogprob, ToolCall, Usage


class UsageBefore(Delta, tag=7, frozen=True):
    """`Usage` without the tokens that were written to the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    is_added: bool = False


def test_a_usage_without_cache_writes_is_read() -> None:
    logged = msgspec.msgpack.encode([UsageBefore(9, 4, 1)])
    assert deltas.decode(logged) == [Usage(9, 4, 1, cache_write_tokens=None, cache_write_1h_tokens=None)]


def test_a_usage_with_cache_writes_is_read_by_the_release_before() -> None:
    logged = deltas.encode([Usage(9, 4, 1, cache_write_tokens=5, cache_write_1h_tokens=3)])
    assert msgspec.msgpack.decode(logged, type=list[UsageBefore]) == [UsageBefore(9, 4, 1)]


class StartedBefore(Delta, tag=1, frozen=True):
    """`Started` without the upstream's early figures of the prompt."""

    system_fingerprint: str | None = None
    service_tier: deltas.ServiceTier | None = None
    context: dict[str, Any] = {}
    prompt_tokens: int | None = None
    model: str | None = None


def test_a_start_is_read_by_the_release_before_and_one_of_it_is_read() -> None:
    logged = deltas.encode([deltas.Started("fp", context={"a": 1}, prompt_usage=Usage(9, 0, 1))])
    before = StartedBefore("fp", context={"a": 1})
    assert msgspec.msgpack.decode(logged, type=list[StartedBefore]) == [before]
    assert deltas.decode(msgspec.msgpack.encode([before])) == [deltas.Started("fp", context={"a": 1})]


@pytest.mark.parametrize("kind", get_args(Content), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["counted_text", "content_chars"])
def test_each_kind_of_content_says_what_is_charged_and_how_long_it_is(kind: type[Delta], name: str) -> None:
    assert getattr(kind, name) is not getattr(Delta, name), "without its own, it would be free"


@pytest.mark.parametrize(
    "whole",
    [
        Text("abcdefg", 1),
        Reasoning("abcdefg", 1),
        Refusal("abcdefg", 1),
        ToolCall(2, "abcdefg", "call_1", "find", 1, "custom"),
    ],
)
def test_what_was_cut_can_be_joined(whole: Text | Reasoning | Refusal | ToolCall) -> None:
    parts: list[Any] = list(whole.cut(3))
    first, *rest = parts
    assert [part.content_chars for part in parts] == [3, 3, 1]
    assert [part.index for part in parts] == [1, 1, 1]
    assert "".join(part.counted_text for part in parts) == whole.counted_text
    assert first.joined(rest) == [whole]


def test_only_the_first_part_of_a_call_has_its_id_and_its_name() -> None:
    parts = ToolCall(0, "abcd", "call_1", "find", extra_content={"a": 1}).cut(2)
    assert list(parts) == [ToolCall(0, "ab", "call_1", "find", extra_content={"a": 1}), ToolCall(0, "cd")]


def test_a_text_with_log_probabilities_is_not_cut() -> None:
    text = Text("abcd", logprobs=[TokenLogprob("abcd", -0.1)])
    assert text.cut(2) == [text]
