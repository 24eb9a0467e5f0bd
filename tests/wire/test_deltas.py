"""The deltas of the release before are read, and it reads ours: both run while an upgrade goes on."""

import msgspec

from chatapi.wire import deltas
from chatapi.wire.deltas import Delta, Usage


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
