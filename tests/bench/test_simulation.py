"""The simulation of several machines, in cases whose waits can be written down."""

import sys
from argparse import Namespace

import pytest

from bench.simulation import (
    BASE_S,
    CLAIM_S,
    END_S,
    LEASE_S,
    MOST_FOR_TOKENS,
    RETRY_S,
    WEB_START_S,
    WEB_TOKEN_S,
    WORKER_TOKEN_S,
    Simulation,
    main,
)


def simulated(**options: float) -> Simulation:
    """Return a run of streams that begin at once, on one machine with cores for all and free tokens."""
    usual = {"machines": 1, "web": 1, "workers": 1, "slots": 1, "streams": 5, "seed": 1, "lose": False}
    times = {"cores": 2.0, "tokens_per_second": 0.0, "seconds": 3.0, "ramp_seconds": 0.0}
    simulation = Simulation(Namespace(**(usual | times | options)))
    simulation.run()
    return simulation


def test_one_slot_serves_one_stream_after_the_other() -> None:
    simulation = simulated()
    served_s = CLAIM_S + 3.0 + END_S
    # The web process enqueues one stream after the other, too.
    assert simulation.queued_s == pytest.approx([n * (served_s - WEB_START_S) for n in range(5)])
    waits = [WEB_START_S + n * served_s + CLAIM_S + BASE_S for n in range(5)]
    assert simulation.first_token_s == pytest.approx(waits)


def test_streams_with_a_slot_each_wait_only_for_the_claims_before_them() -> None:
    simulation = simulated(slots=5)
    assert simulation.queued_s == [0.0] * 5
    # A claim is shorter than a start, so the worker is free again before the next stream comes.
    waits = [n * WEB_START_S + CLAIM_S + BASE_S for n in range(1, 6)]
    assert simulation.first_token_s == pytest.approx(waits)


def test_a_machine_with_half_a_core_takes_twice_as_long() -> None:
    [first_token_s] = simulated(streams=1, cores=0.5).first_token_s
    assert first_token_s == pytest.approx(2 * (WEB_START_S + CLAIM_S) + BASE_S)


def test_tokens_take_their_part_of_a_process() -> None:
    """A stream belongs to both processes from its start and its claim on."""
    tokens_per_second = 5_000.0
    [first_token_s] = simulated(streams=1, tokens_per_second=tokens_per_second).first_token_s
    web, worker = (tokens_per_second * each for each in (WEB_TOKEN_S, WORKER_TOKEN_S))
    assert max(web, worker) < MOST_FOR_TOKENS
    assert first_token_s == pytest.approx(WEB_START_S / (1 - web) + CLAIM_S / (1 - worker) + BASE_S)
    [late_s] = simulated(streams=1, tokens_per_second=1e9).first_token_s
    assert late_s == pytest.approx((WEB_START_S + CLAIM_S) / MOST_FOR_TOKENS + BASE_S)


def test_streams_of_a_lost_machine_begin_again_on_the_other_one() -> None:
    simulation = simulated(machines=2, slots=400, streams=400, ramp_seconds=4.0, seconds=60.0, lose=True)
    # Each of two web processes and each of two workers has about half of them: a quarter stays whole.
    assert simulation.ended_early == pytest.approx(300, abs=40)
    assert len(simulation.first_token_s) == 400 + simulation.ended_early
    # The last ones are those whose worker died: their leases run out first.
    assert simulation.recovered_s is not None
    assert LEASE_S + RETRY_S[0] < simulation.recovered_s < LEASE_S + RETRY_S[1] + 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--lose", "--lose needs a machine that stays"),
        ("--streams 0", "must be at least 1"),
        ("--machines 0", "must be at least 1"),
        ("--machines 2 --slots 0", "must be at least 1"),
    ],
)
def test_it_refuses_options_without_a_result(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments.split()])
    with pytest.raises(SystemExit, match=r"^2$"):
        main()
    assert message in capsys.readouterr().err
