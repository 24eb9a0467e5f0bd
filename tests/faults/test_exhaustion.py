"""A web process runs out of file descriptors, of disk, or of time on its event loop."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.faults import armed
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("exhaustion"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_DATABASE_TIMEOUT_MS": "1000"}


@contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """Limit this resource of the process inside the block."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, before)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_without_file_descriptors_what_runs_goes_on_and_the_rest_comes_later(
    installation: Installation, ask: Ask
) -> None:
    pid = installation.processes["web"].pid
    running = ask("two-seconds").heard(5)
    with limited(pid, resource.RLIMIT_NOFILE, open_files(pid) + 5), ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(socket.create_connection(("127.0.0.1", installation.port)))
        assert len(running.end().words) == 100
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=10, pause_s=0.2)


def test_without_disk_a_request_is_refused_and_costs_nothing(installation: Installation, ask: Ask) -> None:
    if installation.environment.get("DATABASE_URL", "").startswith("postgres"):
        pytest.skip("PostgreSQL writes in processes of its own")
    pid = installation.processes["web"].pid
    assert ask("five").end().is_done
    with limited(pid, resource.RLIMIT_FSIZE, 1):
        refused = ask("five").end()
    assert (refused.status, refused.ends) == (503, 1)
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=10, pause_s=0.2)


def test_a_web_process_whose_loop_stands_still_makes_no_worker_look_dead(
    installation: Installation, ask: Ask
) -> None:
    armed.start(installation, "web", "view.before_first_byte=sleep:3@2")
    running = ask("two-seconds").heard(5)
    assert ask("five").end().is_done
    assert armed.strikes(installation, "web", "view.before_first_byte") == 1
    assert (len(running.end().words), running.ends, running.is_done) == (100, 1, True)
    assert installation.receipt(running.generation_id)["outcome"] == "completed"
