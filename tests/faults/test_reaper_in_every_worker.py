"""A worker that dies while another one lives, and no reaper runs: the other one closes what the dead one left
open.
"""

import signal
import time
from collections.abc import Iterator

import pytest

from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "20000"}
"""Longer than a worker needs to start."""
TOLD_WITHIN_S = 3


@pytest.fixture(params=[["survivor"], ["survivor", "another survivor"]], ids=["one", "two"])
def survivors(request: pytest.FixtureRequest, installation: Installation) -> Iterator[list[str]]:
    """Start workers beside the one that dies."""
    yield request.param
    for name in request.param:
        installation.end(name, signal.SIGTERM)


def workers_that_wait(installation: Installation) -> int:
    """Return the number of workers that wait for tasks, by Valkey's count."""
    with installation.open_valkey() as redis:
        return sum(client["cmd"] == "bzpopmin" for client in redis.client_list())


def test_a_living_worker_ends_the_answer_of_a_dead_one(
    installation: Installation, ask: Ask, survivors: list[str]
) -> None:
    streams = [ask("steady").heard(5) for _ in range(3)]
    for name in survivors:
        installation.start_worker(name)
    wait_for(lambda: workers_that_wait(installation) == 1 + len(survivors), "the survivors")
    installation.end("worker")
    killed_at = time.monotonic()
    wait_for(lambda: all(stream.has_ended for stream in streams), "the clients' ends", timeout_s=10)
    assert "reaper" not in installation.processes
    for stream in streams:
        assert stream.ended_at - killed_at < TOLD_WITHIN_S
        assert (stream.error["code"], stream.ends, stream.is_done) == ("worker_lost", 1, True)
        receipt = installation.receipt(stream.generation_id)
        assert (receipt["outcome"], receipt["usage_source"]) == ("worker_lost", "counted")
        assert receipt["usage"]["completion_tokens"] == len(stream.words)
        assert (
            receipt["amount_nanodollars"]
            == sum(line["amount_nanodollars"] for line in receipt["line_items"])
            > 0
        )
    assert ask("five").end().is_done
