"""A thousand in flight hurt neither the browser that looks at Live nor the server that others ask."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.browser.crowd import SIZE
from tests.installation import ROOT, Installation, die_with_parent

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

LONGEST_TASK_MS = 200
"""Of the page's thread, in CPU time: what else runs on the machine is not the page's fault."""
LONGEST_ANSWER_S = 5
"""A liveness check and a completion, meanwhile, on a machine that has more to do."""
LARGEST_MESSAGE_BYTES = 300_000
"""Of one in which all of the thousand are new, or different."""


@pytest.fixture
def crowd(installation: Installation) -> Iterator[None]:
    """So many run, and all have new tokens every half second; in the end they are settled."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.browser.crowd"],
        cwd=ROOT,
        env=installation.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  one C call, no lock
    )
    assert process.stdout
    assert process.stdout.readline() == "running\n"
    yield
    process.communicate(timeout=30)
    assert process.returncode == 0


def seconds_to_answer(installation: Installation) -> float:
    """How long a liveness check and a completion take, one after the other."""
    began = time.monotonic()
    assert installation.get("/healthz")[0] == 200
    with OpenAI(base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0) as client:
        answer = client.chat.completions.create(model="sandbox", messages=[{"role": "user", "content": "hello"}])
    assert answer.usage
    return time.monotonic() - began


def longest_task_ms(trace: bytes) -> float:
    """The most CPU time that a page's main thread took for one task (Chromium's trace events, `tdur` in microseconds)."""
    events = json.loads(trace)["traceEvents"]
    named = [event for event in events if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"]
    threads = {(event["pid"], event["tid"]) for event in named}
    tasks = [event for event in events if event["name"] == "ThreadControllerImpl::RunTask" and (event["pid"], event["tid"]) in threads]
    assert tasks
    return float(max(task.get("tdur", 0) for task in tasks)) / 1_000  # one that began before the trace has none


def test_a_thousand_in_flight_hurt_neither_browser_nor_server(page: Page, installation: Installation, crowd: None) -> None:
    messages: list[str] = []
    page.on("websocket", lambda feed: feed.on("framereceived", lambda message: messages.append(str(message))))
    with page.expect_websocket() as opened:
        page.goto(f"{installation.url}/admin/live/")
    feed = opened.value
    expect(page.locator("#live-rows tr")).to_have_count(SIZE)
    browser = page.context.browser
    assert browser
    browser.start_tracing(page=page, categories=["toplevel"])
    for _ in range(3):
        feed.wait_for_event("framereceived")
        assert seconds_to_answer(installation) < LONGEST_ANSWER_S
    assert longest_task_ms(browser.stop_tracing()) < LONGEST_TASK_MS
    assert [len(json.loads(message)["rows"]) for message in messages].count(SIZE) >= 3
    assert max(map(len, messages)) < LARGEST_MESSAGE_BYTES
