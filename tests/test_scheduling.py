"""Tests of a group, and the other tests of a file, run in one of pytest-xdist's workers."""

from typing import Any

import pytest

from tests.scheduling import FilesAndGroups


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/wire/test_parts.py::test_one", "tests/wire/test_parts.py"),
        ("tests/wire/test_parts.py::TestAny::test_one[a@b::c]", "tests/wire/test_parts.py"),
        ("tests/wire/test_parts.py::test_one[a::b]@a group", "a group"),
    ],
)
def test_a_worker_takes_a_group_or_a_file(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, nodeid: str, scope: str
) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"], raising=False)
    assert FilesAndGroups(pytestconfig)._split_scope(nodeid) == scope


class Worker:
    """A worker of pytest-xdist that keeps what it was given."""

    shutting_down = False
    id = "gw"

    def __init__(self) -> None:
        self.given: list[int] = []
        self.gateway = self

    def send_runtest_some(self, tests: list[int]) -> None:
        self.given.extend(tests)


def test_the_first_worker_begins_with_files_and_all_others_with_groups(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"] * 3, raising=False)
    monkeypatch.setattr(pytestconfig.option, "loadscopereorder", True, raising=False)
    files = [f"tests/test_{name}.py::test_{number}" for name in "abc" for number in range(6)]
    groups = [f"tests/test_d.py::test_{number}@group {name}" for name in "abc" for number in range(3)]
    scheduling: Any = FilesAndGroups(pytestconfig)
    workers = [Worker() for _ in range(3)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, [*files, *groups])
    scheduling.schedule()
    begun = [[(*files, *groups)[test].partition("@")[2] for test in worker.given[:3]] for worker in workers]
    assert begun == [[""] * 3, ["group a"] * 3, ["group b"] * 3]
