"""The headers about limits, in OpenAI's form."""

import pytest

from accounts.errors import RateLimited
from accounts.limits import DAY_MS, MINUTE_MS, Counts, Limit, LimitStatus, duration, headers

REQUESTS = Limit("key", 1, "", Counts.REQUESTS, 60, MINUTE_MS)
TOKENS = Limit("organization", 1, "", Counts.TOKENS, 150_000, MINUTE_MS)


def shown(*statuses: LimitStatus, refused: Limit | None = None) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers(statuses, refused)}


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (12, "12ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (8_640, "8.64s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (3_600_500, "1h0m0.5s"),
        (DAY_MS, "24h0m0s"),
    ],
)
def test_times_are_written_as_go_does(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_the_headers_are_those_of_openai() -> None:
    """Compare with the example in OpenAI's guide to rate limits."""
    assert shown(LimitStatus(REQUESTS, 59, 1_000), LimitStatus(TOKENS, 149_984, 360_000)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
    }


def test_without_limits_there_are_no_headers() -> None:
    assert shown() == {}


def test_they_speak_of_the_tightest_limit_per_minute() -> None:
    wide, day = (
        Limit("project", 1, "", Counts.REQUESTS, 900, MINUTE_MS),
        Limit("key", 1, "", Counts.REQUESTS, 50, DAY_MS),
    )
    statuses = [LimitStatus(wide, 300, 1_000), LimitStatus(day, 3, 1_000), LimitStatus(REQUESTS, 40, 2_000)]
    assert shown(*statuses)["x-ratelimit-limit-requests"] == "60"
    assert shown(*statuses[:2])["x-ratelimit-limit-requests"] == "900"
    assert shown(statuses[1])["x-ratelimit-limit-requests"] == "50"


def test_a_refusal_speaks_of_the_limit_that_refused() -> None:
    day = Limit("key", 1, "", Counts.REQUESTS, 50, DAY_MS)
    assert (
        shown(LimitStatus(REQUESTS, 40, 2_000), LimitStatus(day, 0, DAY_MS), refused=day)[
            "x-ratelimit-limit-requests"
        ]
        == "50"
    )


def test_a_refusal_says_what_is_exhausted_and_until_when() -> None:
    refusal = RateLimited(TOKENS, [LimitStatus(REQUESTS, 40, 20_000), LimitStatus(TOKENS, 0, 60_000)], 6_000)
    assert (
        str(refusal) == "Rate limit reached: 150000 tokens per minute for this organization. Try again in 6s."
    )
    assert (b"x-ratelimit-remaining-tokens", b"0") in refusal.headers()


def test_a_refusal_for_good_promises_no_time() -> None:
    shut = Limit("key", 1, "gpt", Counts.RUNNING, 0)
    assert (
        str(RateLimited(shut, [], None))
        == "Rate limit reached: 0 concurrent requests for this API key and the model gpt."
    )
