"""The mistakes that `make mutations` makes can still be made: the code they change is there, and so are the tests that notice."""

from pathlib import Path

import pytest

from tests.faults.mutations import MUTATIONS, PROJECT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_code_that_it_breaks_is_there(mutation: Mutation, tmp_path: Path) -> None:
    file = tmp_path / mutation.file
    file.parent.mkdir(parents=True)
    file.write_text((PROJECT / mutation.file).read_text())
    mutation.apply(tmp_path)
    assert mutation.wrong in file.read_text()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_tests_that_notice_are_there(mutation: Mutation) -> None:
    for test in mutation.tests:
        file, _, function = test.partition("::")
        assert function.partition("[")[0] in (PROJECT / file).read_text()
