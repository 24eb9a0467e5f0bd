"""Valkey dies, comes back empty, or freezes."""

import signal
import time

import pytest

from tests.fake_completion import WORDS
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = pytest.mark.xdist_group("faults")


def test_a_stream_goes_on_when_valkey_comes_back_soon(installation: Installation, ask: Ask) -> None:
    answer = ask("two-seconds").heard(5)
    installation.end("valkey")
    installation.start_valkey()
    answer.end()
    assert answer.is_done
    # What was in Valkey and not read yet when it died is lost; without it there is no good end.
    if "error" in answer.chunks[-1]:
        assert answer.error["code"] == "stream_unavailable"
    else:
        assert answer.words == (WORDS * 5)[:100]
        assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == 100


def test_a_stream_ends_with_an_error_when_valkey_stays_away(installation: Installation, ask: Ask) -> None:
    answer = ask("steady").heard(5)
    installation.end("valkey")
    killed_at = time.monotonic()
    answer.end()
    assert answer.ended_at - killed_at < 6
    assert answer.error["code"] == "stream_unavailable"
    assert answer.is_done
    wait_for(lambda: installation.calls("steady")[-1]["is_peer_gone"], "the worker to give up")
    installation.start_valkey()
    # Before the web process has noticed that it can read again.
    assert ask("five").end().is_done
    receipt = installation.receipt(answer.generation_id)
    # One tick may have been half done.
    assert abs(receipt["usage"]["completion_tokens"] - len(answer.words)) <= 2
    assert receipt["usage_source"] == "counted"


def test_a_new_request_is_refused_for_nothing_while_valkey_is_away(
    installation: Installation, ask: Ask
) -> None:
    assert ask("five").end().is_done
    installation.end("valkey")
    refused = ask("five").end()
    assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
    budgets = installation.get("/v1/key", installation.keys["live"])[1]["budgets"]
    assert {budget["pending_nanodollars"] for budget in budgets} == {0}


def test_it_serves_again_when_an_idle_valkey_has_restarted_empty(
    installation: Installation, ask: Ask
) -> None:
    ask("five").end()
    installation.end("valkey")
    installation.start_valkey()
    back_at = time.monotonic()
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=10, pause_s=0.2)
    assert time.monotonic() - back_at < 10


def test_a_request_queued_in_a_lost_valkey_gets_an_error_and_costs_nothing(
    installation: Installation, ask: Ask
) -> None:
    installation.end("worker", signal.SIGTERM)
    installation.start_reaper()
    answer = ask("five")
    wait_for(
        lambda: (
            installation.get("/v1/key", installation.keys["live"])[1]["budgets"][0]["pending_nanodollars"] > 0
        ),
        "the admission",
    )
    installation.end("valkey")
    installation.start_valkey()
    answer.end()
    assert answer.status == 503
    assert answer.error["code"] in {"queue_timeout", "stream_unavailable"}


def test_a_frozen_valkey_is_as_good_as_none(installation: Installation, ask: Ask) -> None:
    answer = ask("steady").heard(5)
    installation.send("valkey", signal.SIGSTOP)
    frozen_at = time.monotonic()
    answer.end()
    assert answer.ended_at - frozen_at < 12
    assert answer.error["code"] == "stream_unavailable"
    wait_for(lambda: installation.calls("steady")[-1]["is_peer_gone"], "the worker to give up")
    installation.send("valkey", signal.SIGCONT)
    receipt = installation.receipt(answer.generation_id)
    # One tick may have been half done.
    assert abs(receipt["usage"]["completion_tokens"] - len(answer.words)) <= 2
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=10, pause_s=0.2)
