"""Embeddings at every failpoint, struck in every way: the client gets all vectors or none, and pays only for
all of them.

FAULTS=all (`make faults`) takes all 54 runs; the usual run takes those around the commit of the settlement,
and one of each action.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from itertools import product

import pytest

from tests.chatapi.http_client import Answer, Client
from tests.faults import armed
from tests.faults.bookkeeper import Bookkeeper
from tests.installation import Installation, wait_for
from usage import failpoints

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("failpoints-embeddings")]

ENVIRONMENT = armed.ENVIRONMENT
MODEL = "embed-in-a-second"
INPUTS = [f"text {number}" for number in range(64)]
"""A third of a MiB of vectors, so that they are published in several entries."""
ALL = [*product(failpoints.OF_REQUESTS, armed.ACTIONS)]
AROUND_COMMITS = [("settle.in_tx", "kill9"), ("settle.after_commit", "kill9"), ("reaper.in_tx", "kill9")]
USUAL = [*AROUND_COMMITS, ("terminal.after_publish", "raise"), ("delta.after_publish", "sleep")]
RUNS = {"all": ALL, "few": AROUND_COMMITS}.get(os.environ.get("FAULTS", ""), USUAL)


@pytest.mark.parametrize(("failpoint", "action"), RUNS)
def test_a_client_gets_all_vectors_or_none(
    failpoint: str, action: str, installation: Installation, bookkeeper: Bookkeeper
) -> None:
    installation.revive()
    known = {row.id for row in bookkeeper.rows()}
    calls = len(installation.calls(MODEL))
    strike = armed.Strike(installation, failpoint, action)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, installation)
        if strike.carrier == "reaper":
            wait_for(lambda: len(installation.calls(MODEL)) > calls, "the upstream to be asked")
            installation.end("worker")
        strike.wait(asking.done)
        installation.revive()
        answer = asking.result(60)
    bookkeeper.close_the_books()
    rows = [row for row in bookkeeper.rows() if row.id not in known]
    assert len(rows) == 1 or (failpoint == "admit.before_commit" and not rows)
    assert all((row.charges, row.overages) == (1, 0) for row in rows)
    assert answer is not None or (strike.carrier, action) == ("web", "kill9")
    if answer is not None and answer.status == 200:
        assert len(answer.json["data"]) == len(INPUTS)
        (row,) = rows
        assert row.outcome == "completed"
        assert answer.json["usage"]["prompt_tokens"] == row.prompt_tokens
        assert row.amount_nanodollars == row.prompt_tokens * 1_000
    else:
        # Only of a web process that fails itself may the books have vectors that its client does not.
        may_be_charged = {"completed"} if strike.carrier == "web" else set()
        assert all(not row.amount_nanodollars or row.outcome in may_be_charged for row in rows)
    wait_for(lambda: (again := ask(installation)) is not None and again.status == 200, "service")


def ask(installation: Installation) -> Answer | None:
    """Return the answer; None if the connection breaks."""
    body = json.dumps({"model": MODEL, "input": INPUTS, "encoding_format": "base64"}).encode()
    with suppress(OSError, HTTPException):
        return Client(installation.url, installation.keys["live"], 40).send("POST", "/v1/embeddings", body)
    return None
