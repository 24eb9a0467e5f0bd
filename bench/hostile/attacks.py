"""All attacks, by name."""

from bench.hostile import (
    controls,
    live_key,
    no_key,
    protocols,
    test_key,
    test_key_parameters,
    test_key_streams,
)
from bench.hostile.registry import ATTACKS, Attack, select

__all__ = [
    "ATTACKS",
    "Attack",
    "controls",
    "live_key",
    "no_key",
    "protocols",
    "select",
    "test_key",
    "test_key_parameters",
    "test_key_streams",
]
