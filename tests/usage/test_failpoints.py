"""Failpoints: armed by text, struck by name, at the hit that was asked for."""

import time
from collections.abc import Iterator

import pytest

from usage import failpoints
from usage.failpoints import NAMES, FailpointError, failpoint


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_nothing_happens_where_nothing_is_armed() -> None:
    for name in NAMES:
        failpoint(name)


def test_it_raises_at_the_hit_that_was_asked_for() -> None:
    failpoints.arm("settle.in_tx=raise@2")
    failpoint("settle.in_tx")
    with pytest.raises(FailpointError):
        failpoint("settle.in_tx")
    failpoint("settle.in_tx")


def test_it_raises_at_every_hit_where_none_was_named() -> None:
    failpoints.arm("claim.after=raise")
    for _ in range(2):
        with pytest.raises(FailpointError):
            failpoint("claim.after")


def test_it_sleeps() -> None:
    failpoints.arm("claim.after=sleep:0.05")
    began = time.monotonic()
    failpoint("claim.after")
    assert time.monotonic() - began >= 0.05
