"""How many generations a worker process runs at once."""

import os
import resource
import subprocess
import sys

import pytest

COUNT_SLOTS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))
import django
django.setup()
from chatapi.worker.worker_services import slot_count
print(slot_count())
"""


@pytest.mark.parametrize(
    ("descriptors", "concurrency", "slots"),
    [(400, "4000", 300), (400, "100", 100)],
    ids=["few descriptors", "few slots"],
)
def test_a_worker_has_descriptors_left_beside_those_of_its_streams(
    descriptors: int, concurrency: str, slots: int
) -> None:
    assert descriptors <= resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        [sys.executable, "-c", COUNT_SLOTS.format(descriptors=descriptors)],
        env=os.environ | {"CHATAPI_WORKER_CONCURRENCY": concurrency},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == slots
