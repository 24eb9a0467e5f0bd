"""Embeddings while a process dies: the client gets all vectors or none, and pays only for all of them.

FAULTS=all (`make faults`) takes all failpoints that a worker or web passes; the usual run takes those around
the commit of the settlement.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException

import pytest

from tests.chatapi.http_client import Answer, Client
from tests.faults import armed
from tests.faults.bookkeeper import Bookkeeper
from tests.installation import Installation
from usage import failpoints

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("failpoints-embeddings")]

ENVIRONMENT = {"CHATAPI_LEASE_MS": "1500", "CHATAPI_QUEUE_TTL_MS": "2500"}
INPUTS = [f"text {number}" for number in range(64)]
"""Half a MiB of vectors, so that they are published in several entries."""
CARRIERS = {"admit": "web", "enqueue": "web", "view": "web"}
NEVER_PASSED = {"reaper", "heartbeat", "upstream"}
ALL = [name for name in failpoints.NAMES if name.partition(".")[0] not in NEVER_PASSED]
AROUND_THE_COMMIT = ["settle.in_tx", "settle.after_commit"]


@pytest.mark.parametrize("failpoint", ALL if os.environ.get("FAULTS") == "all" else AROUND_THE_COMMIT)
def test_a_death_leaves_all_vectors_or_none(
    failpoint: str, installation: Installation, bookkeeper: Bookkeeper
) -> None:
    installation.revive()
    known = {row.id for row in bookkeeper.rows()}
    carrier = CARRIERS.get(failpoint.partition(".")[0], "worker")
    armed.start(installation, carrier, f"{failpoint}=kill9")
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, installation)
        installation.processes[carrier].wait(20)
        installation.revive()
        answer = asking.result(30)
    bookkeeper.close_the_books()
    rows = [row for row in bookkeeper.rows() if row.id not in known]
    if answer is None:
        assert carrier == "web"
        assert all(row.outcome == "completed" or row.amount_nanodollars == 0 for row in rows)
    elif answer.status == 200:
        assert len(answer.json["data"]) == len(INPUTS)
        (row,) = rows
        assert (row.outcome, row.charges, row.overages) == ("completed", 1, 0)
        assert answer.json["usage"]["prompt_tokens"] == row.prompt_tokens
        assert row.amount_nanodollars == row.prompt_tokens * 1_000
    else:
        assert [row.amount_nanodollars for row in rows] == [0]


def ask(installation: Installation) -> Answer | None:
    """Return the answer; None if the connection breaks."""
    body = json.dumps({"model": "sandbox-embedding", "input": INPUTS, "encoding_format": "base64"}).encode()
    with suppress(OSError, HTTPException):
        return Client(installation.url, installation.keys["live"], 40).send("POST", "/v1/embeddings", body)
    return None
