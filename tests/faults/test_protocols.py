"""Streams of Responses and of Messages at every failpoint, struck in every way, and read again from another
web process: one end, and a charge for what was sent.

FAULTS=all (`make faults`) takes all 108 runs; the usual run takes those around the commit of the settlement,
the death of a worker in mid-stream, and one of each action; FAULTS=few takes those around commits.
"""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from itertools import product
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tests.chatapi.http_client import Client
from tests.faults import armed
from tests.faults.bookkeeper import Bookkeeper
from tests.installation import Installation, wait_for
from usage import failpoints

pytestmark = pytest.mark.timeout(120)

ENVIRONMENT = armed.ENVIRONMENT
MODEL = "a-second"
ALL = [*product(failpoints.OF_REQUESTS, armed.ACTIONS)]
AROUND_COMMITS = [
    ("admit.after_commit", "kill9"),
    ("settle.in_tx", "kill9"),
    ("settle.after_commit", "kill9"),
    ("reaper.in_tx", "kill9"),
]
USUAL = [
    ("delta.after_publish", "kill9"),
    ("settle.after_commit", "kill9"),
    ("view.before_first_byte", "kill9"),
    ("settle.before_tx", "raise"),
    ("delta.after_publish", "sleep"),
    ("reaper.after_commit", "raise"),
]
RUNS = {"all": ALL, "few": AROUND_COMMITS}.get(os.environ.get("FAULTS", ""), USUAL)


class Route(NamedTuple):
    """A protocol's route, and how its events are read."""

    path: str
    content: str
    """The member that has the prompt."""
    body: dict[str, Any]
    text_of: Callable[[dict[str, Any]], str]
    ends: frozenset[str]
    """The types of the events of which a stream has one, as its last."""
    usage_of: Callable[[dict[str, Any]], dict[str, int] | None]


ROUTES = {
    "responses": Route(
        "/v1/responses",
        "input",
        {},
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
        frozenset({"response.completed", "response.incomplete", "response.failed"}),
        lambda event: event.get("response", {}).get("usage"),
    ),
    "messages": Route(
        "/v1/messages",
        "messages",
        {"max_tokens": 200},
        lambda event: event.get("delta", {}).get("text", ""),
        frozenset({"message_stop", "error"}),
        lambda event: event["usage"] if event["type"] == "message_delta" else None,
    ),
}


class Heard:
    """What a client got of one stream."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.status = 0
        self.generation_id = ""
        self.data = b""

    def ask(self, url: str, key: str, method: str, path: str, body: bytes | None) -> "Heard":
        """Read the answer, until its end or until the connection breaks."""
        with suppress(OSError, HTTPException), Client(url, key, 40).exchange(method, path, body, {}) as asked:
            self.status = asked.response.status
            self.generation_id = asked.response.headers["x-generation-id"] or ""
            while line := asked.response.readline():
                self.data += b"" if line.startswith(b"id: ") else line
        return self

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.data.split(b"\n") if self.status == 200 else []
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]

    @property
    def tokens(self) -> int:
        """Return the number of tokens; each word is one."""
        return len("".join(map(self.route.text_of, self.events)).split())

    @property
    def usage(self) -> dict[str, int] | None:
        return next(filter(None, map(self.route.usage_of, reversed(self.events))), None)

    def assert_one_end(self) -> None:
        kinds = [event["type"] for event in self.events]
        assert [kind in self.route.ends for kind in kinds].index(True) == len(kinds) - 1


by_route = pytest.mark.parametrize(
    "route", [pytest.param(route, marks=pytest.mark.xdist_group(f"failpoints-{route}")) for route in ROUTES]
)


def begin(installation: Installation, route: Route, prompt: str = "hello") -> Heard:
    body = route.body | {route.content: [{"role": "user", "content": prompt}], "model": MODEL, "stream": True}
    client = (installation.url, installation.keys["live"])
    return Heard(route).ask(*client, "POST", route.path, json.dumps(body).encode())


def again(installation: Installation, route: Route, generation_id: str, query: str = "") -> Heard:
    """Read the stream again, from the log."""
    path = f"/v1/generations/{generation_id}/stream{query}"
    return Heard(route).ask(installation.url, installation.keys["live"], "GET", path, None)


def tokens_sent(installation: Installation, prompt: str) -> int:
    """Return the number of tokens by the upstream's count."""
    return sum(
        call["tokens"]
        for call in installation.calls(MODEL)
        if call["body"]["messages"][0]["content"] == prompt
    )


@pytest.mark.parametrize(("failpoint", "action"), RUNS)
@by_route
def test_a_stream_has_one_end_and_a_charge_for_what_was_sent(
    route: str, failpoint: str, action: str, installation: Installation, bookkeeper: Bookkeeper
) -> None:
    installation.revive()
    known = {row.id for row in bookkeeper.rows()}
    strike = armed.Strike(installation, failpoint, action, armed.HITS.get(failpoint, 1))
    prompt = uuid4().hex
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(begin, installation, ROUTES[route], prompt)
        if strike.carrier == "reaper":
            wait_for(lambda: tokens_sent(installation, prompt) > 5, "some tokens")
            installation.end("worker")
        strike.wait(asking.done)
        installation.revive()
        heard = asking.result(60)
    bookkeeper.close_the_books()
    rows = [row for row in bookkeeper.rows() if row.id not in known]
    if heard.status == 200 and not (strike.carrier == "web" and action == "kill9"):
        heard.assert_one_end()
    assert heard.status or (strike.carrier, action) == ("web", "kill9")
    # An admission that fails before its commit leaves no row.
    assert len(rows) == 1 or (failpoint == "admit.before_commit" and not rows)
    for row in rows:
        assert (row.charges, row.overages) == (1, 0)
        assert heard.tokens <= row.completion_tokens <= tokens_sent(installation, prompt)
        if heard.usage is not None:
            assert (row.prompt_tokens, row.completion_tokens) == (
                heard.usage["input_tokens"],
                heard.usage["output_tokens"],
            )
        kept = again(installation, ROUTES[route], row.id)
        if kept.status == 200:
            kept.assert_one_end()
            assert kept.tokens == row.completion_tokens
    wait_for(lambda: begin(installation, ROUTES[route]).status == 200, "service")


@by_route
def test_another_web_process_sends_the_same_bytes(route: str, installation: Installation) -> None:
    installation.revive()
    first = begin(installation, ROUTES[route])
    first.assert_one_end()
    with installation.another_web() as another:
        assert again(another, ROUTES[route], first.generation_id).data == first.data
        rest = again(another, ROUTES[route], first.generation_id, "?starting_after=20").data
    assert rest
    assert first.data.endswith(rest)
    receipt = installation.receipt(first.generation_id)
    assert first.usage is not None
    assert receipt["usage"]["completion_tokens"] == first.usage["output_tokens"] == first.tokens
