"""Every failpoint, struck in every way: whatever dies, fails or freezes there, the books are right and the client knows the end.

The usual run takes a selection, chosen by FAULTS_SEED; FAULTS=all (`make faults`) takes all 102.
"""

import os
import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple
from uuid import uuid4

import pytest

from tests.faults import armed
from tests.faults.bookkeeper import Bookkeeper, Row
from tests.faults.conftest import Ask
from tests.faults.listener import Listener
from tests.installation import Installation, wait_for
from usage import failpoints

pytestmark = pytest.mark.timeout(120)

LEASE_MS = 1_500
ENVIRONMENT = {"CHATAPI_LEASE_MS": str(LEASE_MS), "CHATAPI_QUEUE_TTL_MS": "2500"}
"""What is admitted and never queued is to be closed soon."""

CARRIERS = {"admit": "web", "enqueue": "web", "view": "web", "reaper": "reaper"}
"""Which process passes the failpoints of this name; the others are the worker's."""
ACTIONS = {"kill9": "kill9", "raise": "raise", "sleep": f"sleep:{LEASE_MS / 1_000 + 1}"}
HITS = {"delta.before_publish": 5, "delta.after_publish": 5}
"""Which time it strikes, so that it is in mid-stream; elsewhere at the first."""


class Run(NamedTuple):
    """One failpoint, struck in one way, while someone is answered with or without a stream."""

    failpoint: str
    action: str
    is_stream: bool

    @property
    def carrier(self) -> str:
        return CARRIERS.get(self.failpoint.partition(".")[0], "worker")

    def __str__(self) -> str:
        return f"{self.failpoint}-{self.action}-{'stream' if self.is_stream else 'whole'}"


ALL = [Run(*each) for each in product(failpoints.NAMES, ACTIONS, (True, False))]


def selection(seed: int) -> list[Run]:
    """Twelve of them: each action twice in the worker, once in web and reaper."""
    chance = random.Random(seed)
    wanted = [*product(["worker"], ACTIONS), *product(["worker", "web", "reaper"], ACTIONS)]
    runs: list[Run] = []
    for carrier, action in wanted:
        runs.append(chance.choice([run for run in ALL if (run.carrier, run.action) == (carrier, action) and run not in runs]))
    return runs


def cases() -> Iterator[object]:
    """The runs as parameters, each process kind in a group of its own, so that one installation serves them all."""
    seed = int(os.environ.get("FAULTS_SEED", "1"))
    for run in ALL if os.environ.get("FAULTS") == "all" else selection(seed):
        name = str(run) if os.environ.get("FAULTS") == "all" else f"seed{seed}-{run}"
        yield pytest.param(run, id=name, marks=pytest.mark.xdist_group(f"failpoints-{run.carrier}"))


@pytest.fixture(autouse=True)
def everyone_lives(installation: Installation) -> None:
    """All processes run, a second reaper too."""
    installation.revive()


@pytest.mark.parametrize("run", list(cases()))
def test_the_books_are_right_wherever_it_strikes(run: Run, installation: Installation, bookkeeper: Bookkeeper, ask: Ask) -> None:
    known = {row.id for row in bookkeeper.rows()}
    strikes = armed.strikes(installation, run.carrier, run.failpoint)
    armed.start(installation, run.carrier, f"{run.failpoint}={ACTIONS[run.action]}@{HITS.get(run.failpoint, 1)}")
    prompt = f"{run} {uuid4()}"
    answer = begin(run, ask, prompt)
    if run.carrier == "reaper":
        lose_the_worker(installation, prompt)
    wait_for(lambda: armed.strikes(installation, run.carrier, run.failpoint) > strikes or bool(answer.ended_at), f"{run} to strike")
    assert armed.strikes(installation, run.carrier, run.failpoint) > strikes, (answer.status, answer.body, answer.chunks)
    if run.action == "kill9":
        installation.processes[run.carrier].wait(5)
    installation.revive()
    answer.end()
    bookkeeper.close_the_books()
    rows = [row for row in bookkeeper.rows() if row.id not in known]
    assert_told_once(answer, run)
    assert_charged_for_what_was_sent(answer, rows, tokens_sent(installation, prompt))
    wait_for(lambda: ask("five").end().is_done, "service")


def begin(run: Run, ask: Ask, prompt: str) -> Listener:
    options = {"stream_options": {"include_usage": True}} if run.is_stream else {}
    return ask("a-second", stream=run.is_stream, messages=[{"role": "user", "content": prompt}], **options)


def lose_the_worker(installation: Installation, prompt: str) -> None:
    """So that there is something to close."""
    wait_for(lambda: tokens_sent(installation, prompt) > 5, "some tokens")
    installation.end("worker")


def tokens_sent(installation: Installation, prompt: str) -> int:
    """The upstream's own count."""
    return sum(call["tokens"] for call in installation.calls("a-second") if call["body"]["messages"][0]["content"] == prompt)


def assert_told_once(answer: Listener, run: Run) -> None:
    """One end, unless the client's own web process has died."""
    if answer.is_broken:
        assert (run.carrier, run.action) == ("web", "kill9"), (answer.status, answer.chunks[-2:])
        assert answer.ends == 0
    else:
        assert answer.ends == 1, answer.chunks[-3:]


def assert_charged_for_what_was_sent(answer: Listener, rows: Sequence[Row], sent: int) -> None:
    """At most one generation, with one charge, of what the client was told and the upstream has sent."""
    assert len(rows) <= 1
    for row in rows:
        assert (row.charges, row.overages) == (1, 0)
        assert row.completion_tokens <= sent
        if answer.body is None:
            assert row.completion_tokens >= len(answer.words)
        if answer.usage is not None:
            assert (row.outcome, row.usage_source) == ("completed", "upstream")
            assert (row.prompt_tokens, row.completion_tokens) == (answer.usage["prompt_tokens"], answer.usage["completion_tokens"])
    if answer.usage is not None or answer.words:
        assert rows
