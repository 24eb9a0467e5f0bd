"""A process whose event loop is blocked, or that is stopped for a while, is late and not dead: nobody's
stream ends because of it.

One that never goes on is noticed all the same.
"""

import signal
import time
from collections.abc import Sequence

import pytest

from tests.faults import armed
from tests.faults.conftest import Ask
from tests.faults.listener import Listener
from tests.installation import Installation, wait_for

pytestmark = [
    pytest.mark.xdist_group("late-processes"),
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("reaper"),
]
"""The reaper is on time, while the worker's own is as late as the worker."""

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "20000"}
"""Longer than a process is late."""
LATE_S = 10
STREAMS = 4
TOKENS = 1000
WITH_USAGE = {"stream_options": {"include_usage": True}}


def ask_for_several(ask: Ask) -> list[Listener]:
    """Return streams that last for twenty seconds, and have begun."""
    streams = [ask("steady", **WITH_USAGE) for _ in range(STREAMS)]
    for stream in streams:
        stream.heard(5)
    return streams


def assert_all_came(installation: Installation, streams: Sequence[Listener], tokens: int = TOKENS) -> None:
    """Check that there is every word once, in order, one good end, and that the usage in the answer is
    charged.
    """
    for stream in streams:
        stream.end()
        assert (stream.status, stream.ends, stream.is_done) == (200, 1, True), stream.chunks[-2:]
        assert len(stream.words) == tokens
        receipt = installation.receipt(stream.generation_id)
        assert (receipt["outcome"], receipt["usage_source"]) == ("completed", "upstream")
        assert stream.usage is not None
        assert {name: receipt["usage"][name] for name in ("prompt_tokens", "completion_tokens")} == {
            name: stream.usage[name] for name in ("prompt_tokens", "completion_tokens")
        }
        assert stream.usage["completion_tokens"] == tokens
    calls = installation.calls("steady")[-STREAMS:]
    assert sorted(call["tokens"] for call in calls) == [TOKENS] * STREAMS, (
        "no upstream was cut off or asked twice"
    )


def gap_s(streams: Sequence[Listener]) -> float:
    """Wait until all of them receive something again; return how long that took."""
    began, heard = time.monotonic(), [len(stream.words) for stream in streams]
    wait_for(
        lambda: all(len(stream.words) > before + 5 for stream, before in zip(streams, heard, strict=True)),
        "more words",
    )
    return time.monotonic() - began


def test_a_blocked_loop_of_a_web_process_ends_no_stream(installation: Installation, ask: Ask) -> None:
    armed.start(installation, "web", f"view.before_first_byte=sleep:{LATE_S}@{STREAMS + 1}")
    streams = ask_for_several(ask)
    last = ask("five", **WITH_USAGE)
    wait_for(
        lambda: armed.strikes(installation, "web", "view.before_first_byte") == 1, "the loop to be blocked"
    )
    assert gap_s(streams) > LATE_S / 2
    assert_all_came(installation, streams)
    assert_all_came(installation, [last], tokens=5)
    log = installation.log("web")
    assert "the event loop has not turned for 1 s: usage/failpoints.py:" in log
    assert "the event loop turns again" in log
    installation.end("web")


def test_a_stopped_web_process_ends_no_stream(installation: Installation, ask: Ask) -> None:
    streams = ask_for_several(ask)
    late = installation.log("web").count("the event loop has not turned")
    installation.send("web", signal.SIGSTOP)
    time.sleep(LATE_S)
    installation.send("web", signal.SIGCONT)
    assert_all_came(installation, streams)
    assert installation.log("web").count("the event loop has not turned") == late, (
        "a process that was stopped is not a loop that hangs"
    )


def test_a_blocked_loop_of_a_worker_ends_no_stream(installation: Installation, ask: Ask) -> None:
    armed.start(installation, "worker", f"upstream.connected=sleep:{LATE_S}@{STREAMS + 1}")
    streams = ask_for_several(ask)
    last = ask("five", **WITH_USAGE)
    wait_for(
        lambda: armed.strikes(installation, "worker", "upstream.connected") == 1, "the loop to be blocked"
    )
    assert gap_s(streams) > LATE_S / 2
    assert_all_came(installation, streams)
    assert_all_came(installation, [last], tokens=5)
    assert "the event loop has not turned for 1 s: usage/failpoints.py:" in installation.log("worker")
    installation.end("worker")


def test_what_a_worker_claims_as_its_loop_is_blocked_stays_its_own(
    installation: Installation, ask: Ask
) -> None:
    """The blocked loop does not know yet that the worker has claimed the second one."""
    armed.start(installation, "worker", f"claim.after=sleep:{LATE_S}@1")
    answers = [ask("five", **WITH_USAGE), ask("five", **WITH_USAGE)]
    wait_for(lambda: armed.strikes(installation, "worker", "claim.after") == 1, "the loop to be blocked")
    for answer in answers:
        answer.end()
        assert (answer.status, answer.ends, len(answer.words)) == (200, 1, 5), (answer.body, answer.chunks)
    installation.end("worker")
