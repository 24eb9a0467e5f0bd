"""Installations whose processes are killed, stopped and cut off; after every test the books must be right."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis

from tests.faults.bookkeeper import Bookkeeper
from tests.faults.listener import Listener
from tests.installation import Installation

MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "continues": {},
    "a-second": {"tokens": 60, "rate": 50},
    "steady": {"tokens": 1000, "rate": 50},
    "two-seconds": {"tokens": 100, "rate": 50},
    "five-seconds": {"tokens": 250, "rate": 50},
    "embed-in-a-second": {"ttft_ms": 1_200, "dimensions": 1024},
    "never-begins": {"ttft_ms": 60_000},
    "resets": {"tokens": 50, "rst_after": 20},
    "closes": {"tokens": 50, "fin_after": 20},
    "stalls": {"tokens": 50, "stall_after": 20},
    "talks-garbage": {"tokens": 50, "bad_json": 20},
}

Ask = Callable[..., Listener]


@pytest.fixture(scope="module")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Start an installation for this module; the module's ENVIRONMENT overrides the test profile."""
    with Installation(
        tmp_path_factory.mktemp("faults"), **getattr(request.module, "ENVIRONMENT", {})
    ) as installation:
        installation.start(MODELS)
        yield installation
        installation.verify()


@pytest.fixture(scope="module")
def bookkeeper(installed: Installation) -> Iterator[Bookkeeper]:
    """Yield a process that checks the installation's books."""
    bookkeeper = Bookkeeper(installed)
    yield bookkeeper
    bookkeeper.stop()


@pytest.fixture
def installation(installed: Installation, bookkeeper: Bookkeeper) -> Iterator[Installation]:
    """Start all processes that the last test has killed; at the end nothing is open and the books
    are right.
    """
    if "valkey" not in installed.processes:
        installed.start_valkey()
    if "worker" not in installed.processes:
        # On a busy machine it starts later than a request may wait in the queue.
        installed.replace("worker", "manage.py")
    if "web" not in installed.processes:
        installed.start_web()
    yield installed
    bookkeeper.close_the_books()


@pytest.fixture
def reaper(installation: Installation) -> None:
    """Start a reaper, because the worker's own dies with it."""
    if "reaper" not in installation.processes:
        installation.start_reaper()


@pytest.fixture
def valkey(installation: Installation) -> Iterator[Redis]:
    """Open a connection for the test."""
    with installation.open_valkey() as redis:
        yield redis


@pytest.fixture
def ask(installation: Installation) -> Ask:
    """Return a function that requests a completion and listens to the answer."""
    return partial(Listener, installation)
