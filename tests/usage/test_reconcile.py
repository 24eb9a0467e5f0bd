"""The books against an upstream's own bill."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.usage.conftest import NOW, completed, run
from usage.books import ledger
from usage.models import Outcome, UsageSource

Ask = Callable[..., ledger.Admission]
HEADER = "date,model,requests,prompt_tokens,cached_tokens,completion_tokens,cost_usd"
RIGHT = f"{HEADER}\n2026-11-21,story,2,20,0,10,0.00004\n2026-11-22,story,1,10,0,5,0.00002\n"


@pytest.fixture(autouse=True)
def books(ask: Ask) -> None:
    """Settle two requests on one day and one on the next: 10 prompt and 5 completion tokens for 20,000 n$
    each.
    """
    for hours, source in ((0, UsageSource.UPSTREAM), (11, UsageSource.COUNTED), (12, UsageSource.UPSTREAM)):
        now = NOW + timedelta(hours=hours)
        ledger.admit(now, [admission := ask()])
        end = completed(
            run(admission, now), prompt=10, completion=5, usage_source=source, deployment="openai"
        )
        ledger.settle(now, [end])


@pytest.fixture
def reconcile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Compare with a bill of that text; answers the differences."""

    def compare(text: str, *options: str) -> list[str]:
        bill = tmp_path / "bill"
        bill.write_text(text)
        with suppress(CommandError):
            call_command("reconcile", str(bill), "--from", "2026-11-21", "--to", "2026-11-23", *options)
        return capsys.readouterr().err.splitlines()

    return compare


Reconcile = Callable[..., list[str]]


def test_a_bill_that_is_right_has_no_difference(reconcile: Reconcile) -> None:
    assert reconcile(RIGHT) == []


def test_each_number_that_differs_is_reported(reconcile: Reconcile) -> None:
    assert reconcile(RIGHT.replace("20,0,10,0.00004", "25,0,10,0.00005")) == [
        "2026-11-21 story prompt_tokens: ours 20, theirs 25, 1 of our requests counted by us",
        "2026-11-21 story cost: ours $0.00004, theirs $0.00005, 1 of our requests counted by us",
    ]


def test_a_little_may_be_tolerated(reconcile: Reconcile) -> None:
    bill = RIGHT.replace("20,0,10", "21,0,10")
    assert reconcile(bill, "--tolerance", "5") == []
    assert len(reconcile(bill, "--tolerance", "4.7")) == 1


@pytest.mark.parametrize("percent", ["nan", "sNaN", "inf", "-1", "101", "five"])
def test_a_tolerance_is_a_percentage(percent: str) -> None:
    with pytest.raises(CommandError, match="is not a percentage"):
        call_command(
            "reconcile", "bill", "--from", "2026-11-21", "--to", "2026-11-23", f"--tolerance={percent}"
        )


def test_a_day_that_one_side_lacks_is_a_difference(reconcile: Reconcile) -> None:
    first = "\n".join(RIGHT.splitlines()[:2])
    assert [line.partition(": ")[0] for line in reconcile(first)] == [
        f"2026-11-22 story {name}" for name in ("requests", "prompt_tokens", "completion_tokens", "cost")
    ]
    assert (
        reconcile(f"{RIGHT}2026-11-22,other,1,1,0,1,0\n")[0] == "2026-11-22 other requests: ours 0, theirs 1"
    )


def test_days_outside_the_period_do_not_count(reconcile: Reconcile) -> None:
    assert reconcile(f"{RIGHT}2026-11-23,story,9,9,9,9,9\n2026-11-20,story,9,9,9,9,9\n") == []


def test_what_a_bill_does_not_tell_is_not_compared(reconcile: Reconcile) -> None:
    assert reconcile("date,model,completion_tokens\n2026-11-21,story,10\n2026-11-22,story,5\n") == []
    assert reconcile("date,model,cost_usd\n2026-11-21,,0.00004\n2026-11-22,,0.00002\n") == []


OURS = "requests: ours 2, theirs 0, 1 of our requests counted by us"


@pytest.mark.parametrize(
    "text",
    [HEADER, "date,model,requests", "date,model,requests\n2026-11-21,story,\n", "date,model,requests\n\n"],
)
def test_a_named_column_is_reported_though_no_line_has_it(reconcile: Reconcile, text: str) -> None:
    assert reconcile(text)[0] == f"2026-11-21 story {OURS}"


def test_a_bill_without_lines_agrees_with_books_without_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bill").write_text(f"{HEADER}\n")
    call_command("reconcile", str(tmp_path / "bill"), "--from", "2020-01-01", "--to", "2020-02-01")
    assert "agree" in capsys.readouterr().out


def test_models_may_have_other_names_there_and_prices_of_their_own(reconcile: Reconcile) -> None:
    bill = RIGHT.replace("story", "big-2026").replace("0.00004", "0.0000003").replace("0.00002", "0.00000015")
    assert reconcile(bill, "--name", "story=big-2026", "--price", "big-2026=0.01,0,0.01") == []


def test_only_one_deployment_is_compared(reconcile: Reconcile, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission), prompt=10, completion=5, deployment="other")])
    assert reconcile(RIGHT, "--deployment", "openai") == []
    assert reconcile(f"{HEADER}\n2026-11-21,story,1,10,0,5,0.00002\n", "--deployment", "other") == []


def lose(ask: Ask, deployment: str = "", *, completion: int = 5, **changes: Any) -> None:
    """Settle a request of noon, whose worker was lost, by the reaper's own count."""
    ledger.admit(NOW, [admission := ask(**changes)])
    claimed = run(admission)
    ledger.beat(
        NOW,
        [
            ledger.Beat(
                "story worker", [ledger.Pulse(claimed.id, claimed.fence, completion, deployment)], 6_000
            )
        ],
    )
    end = completed(
        claimed,
        10 if completion else 0,
        completion,
        outcome=Outcome.WORKER_LOST,
        usage_source=UsageSource.COUNTED,
    )
    ledger.settle(NOW, [end])


WITH_A_THIRD = RIGHT.replace("2,20,0,10,0.00004", "3,30,0,15,0.00006")


def test_what_a_lost_worker_ran_is_compared_where_it_ran(reconcile: Reconcile, ask: Ask) -> None:
    lose(ask, "openai")
    assert reconcile(WITH_A_THIRD) == reconcile(WITH_A_THIRD, "--deployment", "openai") == []


def test_what_was_charged_is_compared_though_nobody_knows_where_it_ran(
    reconcile: Reconcile, ask: Ask
) -> None:
    lose(ask)
    lose(ask, completion=0)
    lose(ask, is_test=True)
    assert reconcile(WITH_A_THIRD) == []


def test_with_a_deployment_it_is_said_how_much_ran_nobody_knows_where(reconcile: Reconcile, ask: Ask) -> None:
    note = "Note: without a known deployment, and so not compared:"
    lose(ask)
    assert reconcile(RIGHT, "--deployment", "openai") == [
        f"{note} 1 request of the period, charged $0.00002."
    ]
    lose(ask)
    lose(ask, completion=0)
    lose(ask, is_test=True)
    assert reconcile(RIGHT, "--deployment", "openai") == [
        f"{note} 2 requests of the period, charged $0.00004."
    ]
    assert reconcile(RIGHT, "--deployment", "openai", "--from", "2026-11-22") == []


def costs(*results: dict[str, Any], has_more: bool = False) -> str:
    """Return an answer of OpenAI's `GET /v1/organization/costs`, of 2026-11-21 and 22."""
    buckets = [
        {"object": "bucket", "start_time": 1_795_219_200 + 86_400 * day, "results": [each]}
        for day, each in enumerate(results)
    ]
    return json.dumps({"object": "page", "data": buckets, "has_more": has_more, "next_page": None})


def cost(usd: float, **more: Any) -> dict[str, Any]:
    return {
        "object": "organization.costs.result",
        "amount": {"value": usd, "currency": "usd"},
        "line_item": None,
        **more,
    }


def test_openais_costs_are_a_bill(reconcile: Reconcile) -> None:
    assert reconcile(costs(cost(0.00004), cost(0.00002))) == []
    assert reconcile(costs(cost(0.00004), cost(0.00003))) == [
        "2026-11-22 all models cost: ours $0.00002, theirs $0.00003"
    ]


def test_openais_line_items_tell_models_and_tokens(reconcile: Reconcile) -> None:
    tokens = {"line_item": "story, output", "quantity": 0.01, "quantity_unit": "1000_tokens"}
    assert reconcile(
        costs(cost(0.00004, **tokens), cost(0.00002, **tokens | {"quantity": 7.0, "quantity_unit": "tokens"}))
    ) == ["2026-11-22 story completion_tokens: ours 5, theirs 7"]


@pytest.mark.parametrize(
    "untold", [{"quantity": None, "quantity_unit": None}, {"quantity": 1.0, "quantity_unit": "characters"}]
)
def test_what_a_line_item_does_not_tell_is_not_compared_on_that_day(
    reconcile: Reconcile, untold: dict[str, Any]
) -> None:
    """The day's cost is compared, and so are the tokens of the other days, also of days without any."""
    tokens = {"line_item": "story, output", "quantity": 10, "quantity_unit": "tokens"}
    assert reconcile(costs(cost(0.00004, **tokens), cost(0.00002, **tokens | untold))) == []
    assert reconcile(costs(cost(0.00004, **tokens | {"quantity": 9}), cost(0.00003, **tokens | untold))) == [
        "2026-11-21 story completion_tokens: ours 10, theirs 9, 1 of our requests counted by us",
        "2026-11-22 story cost: ours $0.00002, theirs $0.00003",
    ]
    assert reconcile(costs(cost(0.00004, **tokens), cost(0, **tokens | untold))) == [
        "2026-11-22 story completion_tokens: ours 5, theirs 0",
        "2026-11-22 story cost: ours $0.00002, theirs $0",
    ]


def test_a_day_of_openais_without_costs_has_cost_nothing(reconcile: Reconcile) -> None:
    days = json.loads(costs(cost(0.00004), cost(0)))
    days["data"][1]["results"] = []
    assert reconcile(json.dumps(days)) == ["2026-11-22 all models cost: ours $0.00002, theirs $0"]


def test_a_single_difference_is_one(reconcile: Reconcile, tmp_path: Path) -> None:
    (tmp_path / "bill").write_text(RIGHT.replace("story,1,10", "story,1,11"))
    with pytest.raises(CommandError, match=r"^1 difference between"):
        call_command("reconcile", str(tmp_path / "bill"), "--from", "2026-11-21", "--to", "2026-11-23")


def test_a_period_that_ends_before_it_begins_is_refused(reconcile: Reconcile, tmp_path: Path) -> None:
    (tmp_path / "bill").write_text(RIGHT)
    with pytest.raises(CommandError, match="--from must be before --to"):
        call_command("reconcile", str(tmp_path / "bill"), "--from", "2026-11-23", "--to", "2026-11-21")


@pytest.mark.parametrize("name", ["--from", "--to"])
@pytest.mark.parametrize(
    "text", ["2026-11-22T06:00", "2026-11-22T00:00:00.000001Z", "2026-11-22T00:00:00+02:00", "november"]
)
def test_a_part_of_a_day_is_not_compared_with_a_whole_one(name: str, text: str) -> None:
    shown = re.escape(
        f"argument {name}: {text!r} is not the start of a day in UTC, such as 2026-11-01: "
        "bills are compared by whole days"
    )
    with pytest.raises(CommandError, match=f"{shown}$"):
        call_command("reconcile", "bill", "--from=2026-11-21", "--to=2026-11-23", f"{name}={text}")


@pytest.mark.parametrize("text", ["2026-11-22", "2026-11-22T00:00:00Z", "2026-11-22T02:00:00+02:00"])
def test_a_day_may_be_written_as_its_first_moment(reconcile: Reconcile, text: str) -> None:
    assert reconcile(f"{HEADER}\n2026-11-22,story,1,10,0,5,0.00002\n", "--from", text) == []


def test_a_deployment_that_never_served_anything_is_refused(reconcile: Reconcile, tmp_path: Path) -> None:
    (tmp_path / "bill").write_text(HEADER)
    with pytest.raises(CommandError, match="No request that is kept was served by a deployment 'zzz'"):
        call_command(
            "reconcile",
            str(tmp_path / "bill"),
            "--from",
            "2026-11-21",
            "--to",
            "2026-11-23",
            "--deployment",
            "zzz",
        )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("date,model\n", "line 1: it has no column to compare, which is any of: requests, .*, cost_usd"),
        (
            "date,model,Cost_USD\n",
            "line 1: 'Cost_USD' is not a column of a bill; the columns are: date, .*, cost_usd",
        ),
        ("date,model,cost_usd,currency\n2026-11-21,story,1,EUR\n", "line 1: 'currency' is not a column"),
        ("date,model,requests,requests\n", "line 1: it has a column twice"),
        ("model,date,requests\nstory\n", "line 2: it has 1 cells, but the first line has 3"),
        ("date,requests,model\n2026-11-21,1\n", "line 2: it has 2 cells"),
        ("date,model,requests\n2026-11-21,story,1,2\n", "line 2: it has 4 cells"),
        ("date,model,requests\n2026-11-21,story,-1\n", "line 2: '-1' is not a whole number"),
        pytest.param(
            f"date,model,requests\n2026-11-21,story,{'9' * 4_300}\n", "is not a number from 0", id="nines"
        ),
        ("date,model,requests\n2026-11-21,story,1_0\n", "line 2: '1_0' is not a whole number"),
        ("date,model,cost_usd\n2026-11-21,story,-0.5\n", "line 2: '-0.5' is not a number from 0"),
        ("date,model,cost_usd\n2026-11-21,story,Infinity\n", "line 2: 'Infinity' is not a number"),
        ("date,model,cost_usd\n2026-11-21,story,NaN\n", "line 2: 'NaN' is not a number"),
        ("date,model,cost_usd\n2026-11-21,story,1e999999999\n", "line 2: '1e999999999' is not a number"),
        ('date,model,cost_usd\n2026-11-21,"sto"ry,1\n', "line 2: "),
        (
            "date,model,requests\n2026-11-21,story,1\n2026-11-22,,1\n",
            "2026-11-22: some lines name a model and others do not",
        ),
        (costs(), "it has no days"),
        (
            costs(cost(1, line_item="story, input"), cost(1)),
            "2026-11-22: some lines name a model and others do not",
        ),
        (costs(cost(float("inf"))), "'inf' is not a number"),
        (costs(cost(-1)), "'-1' is not a number"),
        (costs(cost(1)).replace("1795219200", "1e999999999"), "not a response of"),
        pytest.param('{"data":' * 100_000, "not a response of", id="deep"),
        ("", "no column date"),
        ("date,tokens\n", "line 1: it has no column model"),
        ("date,model,requests\n2026-13-01,a,1\n", "line 2"),
        ("date,model,requests\n2026-11-01,a,x\n", "line 2"),
        ("{}", "not a response of"),
        ("{", "not a response of"),
        (costs(cost(1), has_more=True), "only the first page"),
        (costs({"amount": {"value": 1, "currency": "eur"}}), "US dollars"),
    ],
)
def test_what_is_no_bill_is_said_in_a_line(tmp_path: Path, text: str, shown: str) -> None:
    (tmp_path / "bill").write_text(text)
    with pytest.raises(CommandError, match=shown) as told_to_people:
        call_command("reconcile", str(tmp_path / "bill"), "--from", "2026-11-21", "--to", "2026-11-23")
    assert str(told_to_people.value).startswith(str(tmp_path / "bill"))
    assert "\n" not in str(told_to_people.value)


def test_a_price_for_no_model_is_reported(reconcile: Reconcile) -> None:
    known = ("--name", "story=tale", "--price", "tale=1,1,2")
    assert reconcile(RIGHT.replace("story", "tale"), *known, "--price", "stroy=9,9,9")[-1:] == [
        "Note: neither the bill nor the books have a model 'stroy', for which --price gives a price."
    ]


def test_a_bill_of_another_time_is_reported(
    tmp_path: Path, db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bill.csv").write_text("date,model,cost_usd\n2026-11-21,story,5\n")
    call_command("reconcile", str(tmp_path / "bill.csv"), "--from", "2025-11-01", "--to", "2025-12-01")
    printed = capsys.readouterr()
    assert printed.err == "Note: the bill has lines, but none for a day of the period.\n"
    assert printed.out.endswith("agree.\n")


@pytest.mark.parametrize("option", ["--name=\udcff=x", "--price=\udcff=1,1,1"])
def test_what_no_model_can_be_called_is_refused(option: str) -> None:
    with pytest.raises(CommandError, match="not UTF-8 text"):
        call_command("reconcile", "bill.csv", "--from=2026-11-01", "--to=2026-12-01", option)


def test_a_name_that_none_of_our_models_has_is_reported(reconcile: Reconcile) -> None:
    assert reconcile(RIGHT, "--name", "storey=tale", "--name", "story=story") == [
        "Note: nothing was ever charged for a model 'storey', which --name names."
    ]
