"""Tests of a group, and the other tests of a file, run in one of pytest-xdist's workers."""

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
