"""A thousand in flight hurt neither the browser that looks at Live nor the server that others ask."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.browser.crowd import SIZE
from tests.installation import ROOT, Installation, die_with_parent

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

CHANGING_CELLS = 3
"""Of a row, from one message to the next: its tokens, their rate and their cost. (Its age changes by the
page's own clock.)
"""
FULL_MESSAGES = 4
LARGEST_MESSAGE_BYTES = 300_000
"""Of one in which all of the thousand are new, or different."""

ANSWER_TIMEOUT_S = 30
"""For a completion meanwhile, on a machine that has more to do."""

WATCH = """() => {
  window.changed = {cells: 0, rows: 0};
  new MutationObserver((changes) => {
    for (const {target, addedNodes} of changes) {
      if (target.id === "live-rows") window.changed.rows += addedNodes.length;
      else if (target.dataset.is !== "age") window.changed.cells += 1;
    }
  }).observe(
    document.getElementById("live-rows"),
    {childList: true, characterData: true, attributes: true, subtree: true},
  );
}"""
"""Counts what becomes of the table: rows that are put into it, and changes of anything in them but their age.
"""


@pytest.fixture
def crowd(installation: Installation) -> Iterator[None]:
    """Run this number of requests, all with new tokens every half second; they are settled at the end."""
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


def ask(installation: Installation) -> None:
    """Check that a liveness check and a completion are answered."""
    assert installation.get("/healthz")[0] == 200
    url, key = f"{installation.url}/openai/v1", installation.keys["live"]
    with OpenAI(base_url=url, api_key=key, max_retries=0, timeout=ANSWER_TIMEOUT_S) as client:
        answer = client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": "hello"}]
        )
    assert answer.usage


def ids(messages: list[str]) -> list[str]:
    """Return the ids of the rows that the messages report as new or changed."""
    return [row["id"] for message in messages for row in json.loads(message)["rows"]]


def test_a_thousand_in_flight_hurt_neither_browser_nor_server(
    page: Page, installation: Installation, crowd: None
) -> None:
    messages: list[str] = []
    page.on("websocket", lambda feed: feed.on("framereceived", lambda message: messages.append(str(message))))
    with page.expect_websocket() as opened:
        page.goto(f"{installation.url}/admin/live/")
    expect(page.locator("#live-rows tr")).to_have_count(SIZE, timeout=30_000)
    page.evaluate(WATCH)
    # The first tells all there is, later ones what is new or different; what others ask meanwhile is in some
    # of them, too.
    while sum(len(ids([message])) >= SIZE for message in messages) < FULL_MESSAGES:
        opened.value.wait_for_event("framereceived")
        ask(installation)
    changed = page.evaluate("window.changed")
    shown = ids(messages)
    assert changed["rows"] <= len(set(shown) - set(ids(messages[:1]))), (
        "rows were made that were there already"
    )
    assert changed["cells"] <= CHANGING_CELLS * len(shown), "cells were written that say the same as before"
    assert max(map(len, messages)) < LARGEST_MESSAGE_BYTES
