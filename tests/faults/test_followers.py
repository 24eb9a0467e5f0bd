"""A web process that is told to stop while its clients follow streams that another one serves."""

import signal
from uuid import uuid4

import pytest

from tests.chatapi.http_client import Client
from tests.faults.conftest import Ask
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]


def test_who_resumed_or_attached_is_told_and_the_generations_run_on(installation: Installation, ask: Ask) -> None:
    key = uuid4().hex
    with installation.another_web() as another:
        plain, named = ask("five-seconds").heard(1), ask("five-seconds", idempotency_key=key).heard(1)
        attached = ask("five-seconds", url=another.url, idempotency_key=key).heard(1)
        path = f"/openai/v1/generations/{plain.generation_id}/stream"
        with Client(another.url, installation.keys["live"]).exchange("GET", path, None, {}) as resuming:
            begin = resuming.response.readline()
            another.send("web", signal.SIGTERM)
            resumed = begin + resuming.response.read()
        assert another.end("web", signal.SIGCONT) == 0
    assert resumed.endswith(b"\n\ndata: [DONE]\n\n")
    assert resumed.count(b"[DONE]") == resumed.count(b'"server_shutting_down"') == 1
    assert b'"finish_reason":"stop"' not in resumed
    assert (attached.end().error["code"], attached.ends, attached.is_done) == ("server_shutting_down", 1, True)
    for own in (plain, named):
        assert (len(own.end().words), own.ends, own.is_done) == (250, 1, True)
        assert installation.receipt(own.generation_id)["outcome"] == "completed"
