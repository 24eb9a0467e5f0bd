"""A web process that dies or gets SIGTERM, while workers answer its clients."""

import signal
from uuid import uuid4

import pytest

from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = pytest.mark.xdist_group("faults")


def test_what_a_killed_web_process_leaves_behind_is_cut_off_and_charged(
    installation: Installation, ask: Ask
) -> None:
    answer = ask("steady").heard(10)
    installation.end("web")
    answer.end()
    assert not answer.is_done
    wait_for(
        lambda: installation.calls("steady")[-1]["is_peer_gone"], "the upstream to be cut off", timeout_s=9
    )
    installation.start_web()
    receipt = installation.receipt(answer.generation_id)
    assert receipt["outcome"] == "client_cancelled"
    assert (
        len(answer.words)
        <= receipt["usage"]["completion_tokens"]
        <= installation.calls("steady")[-1]["tokens"]
    )


def test_a_web_process_ends_every_stream_properly_on_sigterm(installation: Installation, ask: Ask) -> None:
    streams = [ask("steady") for _ in range(5)]
    for stream in streams:
        stream.heard(5)
    calls = len(installation.calls("steady"))
    whole = ask("steady", stream=False)
    wait_for(lambda: len(installation.calls("steady")) > calls, "the call")
    installation.send("web", signal.SIGTERM)
    wait_for(lambda: installation.get("/readyz")[0] in {0, 503}, "/readyz to say no", timeout_s=1)
    assert installation.end("web", signal.SIGCONT) == 0
    assert [stream.end().error["code"] for stream in streams] == ["server_shutting_down"] * 5
    assert all(stream.is_done for stream in streams)
    assert (whole.end().status, whole.error["code"]) == (503, "server_shutting_down")
    installation.start_web()
    for stream in streams:
        receipt = installation.receipt(stream.generation_id)
        assert receipt["outcome"] == "client_cancelled"
        assert receipt["usage"]["completion_tokens"] >= len(stream.words)


@pytest.mark.parametrize(
    ("how", "model", "tokens_meanwhile"),
    [(signal.SIGTERM, "two-seconds", 0), (signal.SIGKILL, "five-seconds", 200)],
)
def test_what_was_asked_with_an_idempotency_key_runs_on(
    installation: Installation, ask: Ask, how: signal.Signals, model: str, tokens_meanwhile: int
) -> None:
    """A repeat with the key gets the whole answer, also if the worker takes the web process for dead."""
    key = uuid4().hex
    first = ask(model, idempotency_key=key).heard(10)
    calls = len(installation.calls(model))
    installation.end("web", how)
    first.end()
    wait_for(lambda: installation.calls(model)[-1]["tokens"] >= tokens_meanwhile, "it to run on")
    installation.start_web()
    again = ask(model, idempotency_key=key).end()
    assert (again.status, again.ends, again.is_done) == (200, 1, True)
    assert again.words[: len(first.words)] == first.words
    receipt = installation.receipt(again.generation_id)
    assert receipt["outcome"] == "completed"
    assert (
        receipt["usage"]["completion_tokens"] == len(again.words) == installation.calls(model)[-1]["tokens"]
    )
    assert len(installation.calls(model)) == calls
