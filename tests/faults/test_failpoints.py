"""Every failpoint, in every way: after each death, failure or freeze there, the books are right and the
client gets the end.

By default the runs are `ALWAYS`, which nothing else proves, and a selection by FAULTS_SEED (in CI: by the
commit); FAULTS=all (`make faults`) takes all 108, FAULTS=few those around commits, for the other database.
"""

import os
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tests.chatapi.http_client import Client
from tests.faults import armed
from tests.faults.bookkeeper import Bookkeeper, Row
from tests.faults.conftest import Ask
from tests.faults.listener import Listener
from tests.faults.soak_visits import Heard
from tests.installation import PROFILE, Installation, wait_for
from usage import failpoints

pytestmark = pytest.mark.timeout(120)

TOLD_WITHIN_S = armed.LEASE_MS / 1_000 + float(PROFILE["CHATAPI_REAPER_MS"]) / 1_000 + 1
"""The longest time after a death until a waiting client gets its end."""
ANSWER_S = 1.2
SLACK_S = 8.0
"""An allowance for a machine that is busy with other tests."""
STARTS_S = 15.0
"""The time that a reaper takes to start."""
ENVIRONMENT = armed.ENVIRONMENT


class Run(NamedTuple):
    """One failpoint that strikes in one way while a client is answered, with or without a stream."""

    failpoint: str
    action: str
    is_stream: bool

    @property
    def carrier(self) -> str:
        return armed.carrier(self.failpoint)

    @property
    def told_within_s(self) -> float:
        """Return the time for the answer after the failpoint: a run may have to end, or a reaper to start."""
        asleep_s = armed.LEASE_MS / 1_000 + 1 if self.action == "sleep" else 0.0
        starts_s = STARTS_S if self.carrier == "reaper" else 0.0
        return TOLD_WITHIN_S + ANSWER_S + asleep_s + starts_s + SLACK_S

    @property
    def has_second_client(self) -> bool:
        """Return whether another client follows the stream, once it has begun."""
        return self.is_stream and self.failpoint.partition(".")[0] in {
            "delta",
            "heartbeat",
            "settle",
            "terminal",
        }

    def __str__(self) -> str:
        return f"{self.failpoint}-{self.action}-{'stream' if self.is_stream else 'whole'}"


ALL = [Run(*each) for each in product(failpoints.OF_REQUESTS, armed.ACTIONS, (True, False))]
ALWAYS = [Run("settle.after_commit", "kill9", is_stream) for is_stream in (True, False)]
"""Only these runs prove that the web process sends an end that only the books know."""
AROUND_COMMITS = [
    ALWAYS[0],
    Run("admit.before_commit", "kill9", True),
    Run("admit.after_commit", "kill9", True),
    Run("settle.in_tx", "kill9", True),
    Run("reaper.in_tx", "kill9", True),
]


def selection(seed: int) -> list[Run]:
    """Choose twelve runs beside the fixed ones: each action twice in the worker, once in web and reaper."""
    chance = random.Random(seed)
    wanted = [*product(["worker"], armed.ACTIONS), *product(["worker", "web", "reaper"], armed.ACTIONS)]
    runs = list(ALWAYS)
    for carrier, action in wanted:
        runs.append(
            chance.choice(
                [run for run in ALL if (run.carrier, run.action) == (carrier, action) and run not in runs]
            )
        )
    return runs


def cases() -> Iterator[object]:
    """Yield the runs as parameters, each process kind in a group of its own, so that one installation serves
    them all.
    """
    wanted, seed = os.environ.get("FAULTS", ""), int(os.environ.get("FAULTS_SEED", "1"))
    fixed = {"all": ALL, "few": AROUND_COMMITS}.get(wanted)
    for run in selection(seed) if fixed is None else fixed:
        name = f"seed{seed}-{run}" if fixed is None else str(run)
        yield pytest.param(run, id=name, marks=pytest.mark.xdist_group(f"failpoints-{run.carrier}"))


@pytest.fixture(autouse=True)
def everyone_lives(installation: Installation) -> None:
    """Start all processes that have died, and a second reaper."""
    installation.revive()


@pytest.mark.parametrize("run", list(cases()))
def test_the_books_are_right_wherever_it_strikes(
    run: Run, installation: Installation, bookkeeper: Bookkeeper, ask: Ask
) -> None:
    known = {row.id for row in bookkeeper.rows()}
    hit = armed.HITS.get(run.failpoint, 1) if run.is_stream else 1
    strike = armed.Strike(installation, run.failpoint, run.action, hit)
    prompt = f"{run} {uuid4()}"
    answers = begin(run, ask, prompt)
    if run.carrier == "reaper":
        lose_the_worker(installation, prompt)
    strike.wait(partial(getattr, answers[0], "has_ended"))
    installation.revive()
    for answer in answers:
        wait_for(partial(getattr, answer, "has_ended"), "the client's end", run.told_within_s)
        assert_told_once(answer, run)
    bookkeeper.close_the_books()
    rows = [row for row in bookkeeper.rows() if row.id not in known]
    for answer in answers:
        assert_charged_for_what_was_sent(answer, rows, tokens_sent(installation, prompt))
    assert_kept_is_charged(installation, rows)
    # An admission that fails before its commit leaves no row.
    assert len(rows) == 1 or (run.failpoint == "admit.before_commit" and not rows)
    wait_for(lambda: ask("five").end().is_done, "service")


def begin(run: Run, ask: Ask, prompt: str) -> list[Listener]:
    """Start the client that waits for the answer."""
    parameters: dict[str, Any] = {"stream_options": {"include_usage": True}} if run.is_stream else {}
    if run.has_second_client:
        parameters["idempotency_key"] = uuid4().hex
    asking = partial(
        ask, "a-second", stream=run.is_stream, messages=[{"role": "user", "content": prompt}], **parameters
    )
    return [asking().heard(1), asking()] if run.has_second_client else [asking()]


def lose_the_worker(installation: Installation, prompt: str) -> None:
    """Kill the worker, so that the reaper has a generation to close."""
    wait_for(lambda: tokens_sent(installation, prompt) > 5, "some tokens")
    installation.end("worker")


def tokens_sent(installation: Installation, prompt: str) -> int:
    """Return the number of tokens by the upstream's count."""
    return sum(
        call["tokens"]
        for call in installation.calls("a-second")
        if call["body"]["messages"][0]["content"] == prompt
    )


def assert_told_once(answer: Listener, run: Run) -> None:
    """Check that the client got one end, unless its web process has died."""
    if answer.is_broken:
        assert (run.carrier, run.action) == ("web", "kill9"), (answer.status, answer.chunks[-2:])
        assert answer.ends == 0
    else:
        assert answer.ends == 1, answer.chunks[-3:]


def assert_charged_for_what_was_sent(answer: Listener, rows: Sequence[Row], sent: int) -> None:
    """Check that there is at most one generation, with one charge that matches the client's usage and the
    upstream's count.
    """
    assert len(rows) <= 1
    for row in rows:
        assert (row.charges, row.overages) == (1, 0)
        assert row.completion_tokens <= sent
        if answer.body is None:
            assert row.completion_tokens >= len(answer.words)
        if answer.usage is not None:
            assert (row.outcome, row.usage_source) == ("completed", "upstream")
            assert (row.prompt_tokens, row.completion_tokens) == (
                answer.usage["prompt_tokens"],
                answer.usage["completion_tokens"],
            )
    if answer.usage is not None or answer.words or answer.generation_id:
        assert [row.id for row in rows] == [answer.generation_id.removeprefix("chatcmpl-")]


def assert_kept_is_charged(installation: Installation, rows: Sequence[Row]) -> None:
    """Check that a resumed stream has exactly the charged tokens, and one end."""
    for row in rows:
        kept = resumed(installation, row.id)
        assert (kept.seen_tokens, kept.ends, kept.is_done) == (row.completion_tokens, 1, True)
        if kept.usage is not None:
            assert row.outcome in {"completed", "client_cancelled"}


def resumed(installation: Installation, generation_id: str) -> Heard:
    """Return the stream of a generation that has ended, from its beginning; an error in one piece when
    nothing of it is kept.
    """
    kept, client = Heard(time.monotonic()), Client(installation.url, installation.keys["live"])
    with client.exchange("GET", f"/v1/generations/chatcmpl-{generation_id}/stream", None, {}) as exchange:
        if kept.begin(exchange.response):
            for line in exchange.response.read().decode().splitlines():
                kept.take(line)
    return kept
