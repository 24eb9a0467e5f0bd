"""Seeds leave out most tests on PostgreSQL, but none that has to run there each time, and half of those in a
browser.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.drawing import ALWAYS
from tests.installation import ROOT

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(40))
def test_any(number): ...

@pytest.mark.parametrize("number", range(5))
@pytest.mark.django_db(transaction=True)
def test_that_commits(number): ...

@pytest.fixture
def transactional_db(): ...

@pytest.mark.parametrize("number", range(5))
def test_that_commits_by_a_fixture(transactional_db, number): ...

@pytest.mark.parametrize("number", range(5))
@pytest.mark.skipif(False, reason="it is for the other database")
def test_for_one_database(number): ...

@pytest.mark.parametrize("number", range(5))
@pytest.mark.xdist_group("installation")
def test_of_a_service(number): ...
"""


def collected(file: Path, **seeds: str) -> list[str]:
    """Return the names of the tests that pytest would run with these seeds."""
    plain = ["--config-file=/dev/null", f"--rootdir={file.parent}", "-p", "tests.drawing"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *plain, str(file)],
        cwd=ROOT,
        env=os.environ | seeds | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_a_fifth_of_the_tests_that_may_be_left_out_is_drawn_by_the_seed(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    drawn = [collected(file, ROWS_SEED=seed) for seed in ("1", "2")]
    for tests in drawn:
        of_each = Counter(test.partition("[")[0] for test in tests)
        assert 1 <= of_each.pop("test_any") <= 18
        assert set(of_each.values()) == {5}
        assert len(of_each) == 4
    assert set(drawn[0]) != set(drawn[1])


def test_the_modules_about_sql_always_run_and_are_there(tmp_path: Path) -> None:
    assert {file.stem for file in (ROOT / "tests").rglob("test_*.py")} >= ALWAYS
    file = tmp_path / f"{min(ALWAYS)}.py"
    file.write_text(TESTS)
    assert len(collected(file, ROWS_SEED="1")) == 60


def test_half_of_the_tests_in_a_browser_are_drawn_and_all_that_draw_pages(tmp_path: Path) -> None:
    file = tmp_path / "browser" / "test_some.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    drawn = [collected(file, PAGES_SEED=seed) for seed in ("1", "2")]
    assert all(15 <= len(tests) <= 45 for tests in drawn)
    assert drawn[0] != drawn[1]
    file = file.rename(file.with_stem("test_every_page"))
    assert len(collected(file, PAGES_SEED="1")) == 60
