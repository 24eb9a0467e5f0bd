"""What looks find, whichever reaper is killed between finding, writing and sending: one event, one message.

FAULTS=all (`make faults`) takes all 30 runs, and two reapers that find the same. By default there is one of
the 30, chosen by FAULTS_SEED (in CI: by the commit).
"""

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from chatapi.serving import embedded_valkey
from tests.faults import armed
from tests.faults.findings import FINDINGS
from tests.faults.test_events import END_LEASES
from tests.installation import Installation, wait_for
from tests.webhook_receiver import Receiver, receiving
from usage.failpoints import OF_EVENTS

pytestmark = [pytest.mark.xdist_group("faults-looks"), pytest.mark.timeout(180)]

ALL = list(product(FINDINGS, OF_EVENTS))
IS_ALL = os.environ.get("FAULTS") == "all"
RUNS = ALL if IS_ALL else [random.Random(int(os.environ.get("FAULTS_SEED", "1"))).choice(ALL)]
AT_ONCE = list(FINDINGS) if IS_ALL else []
NUMBERS = [*map(ALL.index, RUNS), *range(len(ALL), len(ALL) + len(AT_ONCE))]
"""Each run has a number of its own, which is the same whichever runs there are."""
ARMED = [sys.executable, "-m", "tests.faults.armed"]
PREPARE = """
from tests.faults import findings
findings.prepare({url!r}, {numbers})
"""
FIND = """
import json
from redis import Redis
from tests.faults import findings
found = findings.FINDINGS[{name!r}]({url!r}, {number}, Redis(unix_socket_path={socket!r}))
print(json.dumps(found))
"""
EVENTS = """
import json
from tests.faults import findings
print(json.dumps(findings.events({found!r})))
"""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Installation]:
    """Start an installation without a reaper; the tests start them."""
    allowed = {"CHATAPI_WEBHOOK_PRIVATE_ADDRESSES": "allow"}
    with Installation(tmp_path_factory.mktemp("looks"), **allowed) as installation:
        installation.start({f"model-{each}": {} for each in NUMBERS})
        installation.end("worker")  # it has a reaper, too
        installation.shell(PREPARE.format(url=receiver.url, numbers=NUMBERS))
        yield installation
        installation.verify()


@pytest.fixture
def installation(installed: Installation) -> Iterator[Installation]:
    """End the reapers after each test."""
    yield installed
    for name in ("reaper", "second"):
        installed.end(name)


def find(installation: Installation, receiver: Receiver, name: str, number: int) -> Any:
    """Bring about what a look is to find; return the kinds and subjects of the events."""
    socket = str(embedded_valkey.socket_path(Path(installation.folder)))
    text = installation.shell(FIND.format(name=name, url=receiver.url, number=number, socket=socket))
    return [tuple(each) for each in json.loads(text)]


def start(installation: Installation, failpoints: str) -> None:
    """Start a reaper with these failpoints; it looks at once, maybe before it is ready."""
    command = [*ARMED, "serve", "--only", "reaper"]
    installation.run("reaper", command, CHATAPI_FAILPOINTS=failpoints)


def assert_each_is_one_event_and_one_message(
    installation: Installation, receiver: Receiver, found: Any, is_sent_twice: bool = False
) -> None:
    """Wait for the messages about these findings, and compare them with the events."""

    def of_events() -> Any:
        return json.loads(installation.shell(EVENTS.format(found=found)))

    def received() -> list[str]:
        return [message.id for message in receiver.messages]

    wait_for(lambda: len(of_events()["ids"]) >= len(found), "the events", 60)
    wait_for(lambda: {*of_events()["ids"]} <= {*received()}, "the messages", 60)
    at_end = of_events()
    assert len(at_end["ids"]) == at_end["deliveries"] == len(found)
    assert at_end["found again"] == []
    numbers = sorted(received().count(each) for each in at_end["ids"])
    # A process that dies between sending and recording leaves some to be sent again, with the same id.
    assert numbers == [1] * len(found) or (is_sent_twice and numbers[-1] == 2)


@pytest.mark.parametrize(("name", "failpoint"), RUNS)
def test_what_a_look_finds_is_one_event_and_one_message(
    installation: Installation, receiver: Receiver, name: str, failpoint: str
) -> None:
    found = find(installation, receiver, name, ALL.index((name, failpoint)))
    start(installation, f"{failpoint}=kill9@1")
    assert installation.processes["reaper"].wait(60) == -signal.SIGKILL
    written = json.loads(installation.shell(EVENTS.format(found=found)))["ids"]
    assert bool(written) == (failpoint not in ("watch.before_tx", "watch.in_tx"))
    installation.shell(END_LEASES)
    installation.end("reaper")
    installation.start_reaper()
    is_sent_twice = failpoint == "deliver.after_send"
    assert_each_is_one_event_and_one_message(installation, receiver, found, is_sent_twice)


@pytest.mark.parametrize("name", AT_ONCE)
def test_two_reapers_that_find_the_same_write_one_event(
    installation: Installation, receiver: Receiver, name: str
) -> None:
    found = find(installation, receiver, name, len(ALL) + AT_ONCE.index(name))
    log = installation.folder / "reaper.log"
    log.unlink(missing_ok=True)
    start(installation, "watch.before_tx=sleep:20@1;watch.after_commit=kill9@1")
    has_found = partial(armed.strikes, installation, "reaper", "watch.before_tx")
    wait_for(lambda: has_found() == 1, "the first to find it", 60)
    # The first one has found it, and writes after the second one: stopping its process instead of letting it
    # sleep could stop another of its threads inside a transaction.
    installation.run("second", [sys.executable, "manage.py", "serve", "--only", "reaper"])
    assert_each_is_one_event_and_one_message(installation, receiver, found)
    assert installation.processes["reaper"].wait(60) == -signal.SIGKILL  # it has written, too
    assert_each_is_one_event_and_one_message(installation, receiver, found)
