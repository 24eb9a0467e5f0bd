"""Buckets of times to first token, so that percentiles of months add up from a few counts.

A bucket is an eighth of a doubling, so a percentile is at most 4.4 % from what was measured.
"""

from collections.abc import Mapping
from math import log2

_PER_DOUBLING = 8


def bucket_of(ms: int) -> int:
    """Return the bucket of a time in milliseconds; anything faster than 1 ms counts as 1 ms."""
    return round(_PER_DOUBLING * log2(max(ms, 1)))


def ms_of(bucket: int) -> int:
    """Return the time in milliseconds that a bucket stands for."""
    return round(2 ** (bucket / _PER_DOUBLING))


def percentile(counts: Mapping[int, float], percent: int) -> int:
    """Return the nearest-rank percentile of times in milliseconds that were counted (at least one)."""
    rank, reached = sum(counts.values()) * percent / 100, 0.0
    for ms in sorted(counts):
        reached += counts[ms]
        # Sampled counts are scaled by a float, so their sum may be a rounding error below the rank.
        if reached >= rank - 1e-6:
            break
    return ms
