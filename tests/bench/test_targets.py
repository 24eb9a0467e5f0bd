"""A gateway that cannot be installed is skipped with one line; the floors answer right; keys take turns."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bench.client import prompt
from bench.compare import run_load, running_upstream
from bench.gateways import install
from bench.load import in_turn
from bench.scenarios import Scenario
from bench.target import Unavailable
from bench.targets import TARGETS


def test_a_gateway_that_cannot_be_installed_is_one_line() -> None:
    says_why = [sys.executable, "-c", "import sys; sys.exit('first\\nno such package')"]
    with pytest.raises(Unavailable) as caught:
        install("gateway", says_why)
    assert str(caught.value) == "gateway is skipped, because it could not be installed: no such package"
    install("gateway", [sys.executable, "-c", ""])


@pytest.mark.parametrize("is_stream", [True, False])
def test_the_floor_answers_right(is_stream: bool, tmp_path: Path) -> None:
    scenario = Scenario("few", "a few", "tok64-d0", 4, is_stream, requests=8, warmup_requests=1)
    with running_upstream(tmp_path) as (upstream, url), TARGETS["floor"](url, tmp_path) as target:
        run = run_load(scenario, target, upstream, seconds=5)
    assert (run.right, run.problems) == (8, {})
    assert set(run.cost) == {"upstream", "web", "worker", "valkey"}


@pytest.mark.parametrize(
    ("name", "is_stream"),
    [("accounted-floor", True), ("accounted-floor", False), ("accounted-floor-msgspec", True)],
)
def test_the_accounted_floor_answers_right_and_charges_each_request_once(
    name: str, is_stream: bool, tmp_path: Path
) -> None:
    scenario = Scenario("few", "a few", "tok64-d0", 4, is_stream, requests=8, warmup_requests=1)
    with (
        running_upstream(tmp_path) as (upstream, url),
        TARGETS[name](url, tmp_path) as target,
    ):
        run = run_load(scenario, target, upstream, seconds=5)
        assert (run.right, run.problems) == (8, {})
        assert set(run.cost) == {"upstream", "web", "worker", "valkey"}
        assert target.verify_ledger is not None
        assert target.verify_ledger() == ""
        with closing(sqlite3.connect(tmp_path / name / "chatapi.sqlite3")) as database:
            settled = database.execute("SELECT fence, completion_tokens FROM floor_generation").fetchall()
            charges = database.execute("SELECT count(*), sum(amount) FROM floor_ledger").fetchall()
            budgets = database.execute("SELECT held, charged FROM floor_budget").fetchall()
            assert settled == [(1, 64)] * 9
            assert charges == [(9, budgets[0][1])]
            assert budgets[0][0] == 0
            database.execute("UPDATE floor_budget SET held = 1")
            database.commit()
        assert "held=1 " in target.verify_ledger()


def test_keys_take_turns_from_any_one_on(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a\nb\nc\n")
    assert {"".join(in_turn(file)) for _ in range(100)} == {"abc", "bca", "cab"}


def test_a_prompt_has_the_asked_size_and_ends_with_its_letter() -> None:
    assert abs(len(prompt("q", 2_000_000)) - 2_000_000) < 100
    assert prompt("q", 2_000_000).endswith(" q")
