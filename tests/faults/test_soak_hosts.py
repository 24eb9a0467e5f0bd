"""Four hosts in network namespaces, for a minute: killed, cut off and added, and each kind of Valkey dies."""

import subprocess
import sys

import pytest

from tests.faults.hosts import why_not
from tests.installation import ROOT

pytestmark = [pytest.mark.xdist_group("hosts"), pytest.mark.timeout(400)]


def test_every_invariant_holds_while_hosts_die_are_cut_off_and_join() -> None:
    if reason := why_not():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.soak_hosts", "--seconds=60", "--seed=1", "--at-least=60"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for fault in (
        "kill a host",
        "cut a link",
        "add a host",
        "kill the reaper",
        "kill the broker",
        "kill a stream server",
    ):
        assert fault in done.stdout
