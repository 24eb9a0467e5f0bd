"""How the operator's pages write numbers and draw shapes."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from django.utils.html import escape

from usage import formatting
from usage.models import Generation
from usage.pages import overview_chart, trends
from usage.pages.columns import amount
from usage.pages.overview_chart import Bucket, Group
from usage.pages.requests_waterfall import waterfall
from usage.templatetags import figures

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("nanodollars", "written"),
    [(0, "$0.00"), (1, "$0.000000001"), (240_000, "$0.00024"), (47_349_999, "$0.0473"),
     (999_999_999, "$1.00"), (1_234_505_000_000, "$1,234.51"), (-12_340_000_000, "-$12.34")],
)  # fmt: skip
def test_money_has_cents_and_below_a_dollar_three_digits(nanodollars: int, written: str) -> None:
    assert formatting.money(nanodollars) == written


@pytest.mark.parametrize(
    ("nanodollars", "written", "seen"),
    [(0, "$0.000000", "$0.00"), (4_680, "$0.000005", "$0.000005"), (10_368_000, "$0.010368", "$0.010368"),
     (25_644_921_406, "$25.644921", "$25.644921"), (50_000_000_000, "$50.000000", "$50.00"),
     (1_234_599_999_500, "$1,234.600000", "$1,234.60"), (-12_340_100_000, "-$12.340100", "-$12.3401"),
     (499, "<$0.000001", "<$0.000001"), (-1, ">-$0.000001", ">-$0.000001")],
)  # fmt: skip
def test_a_column_has_six_decimals_the_last_of_which_may_be_unseen_zeros(
    nanodollars: int, written: str, seen: str
) -> None:
    assert formatting.amount(nanodollars) == written
    zeros = written.removeprefix(seen)
    exact = escape(formatting.usd(nanodollars))
    finer = ' class="finer"' if len(seen.partition(".")[2]) > 2 else ""
    cell = f'<span{finer} title="{exact}">{escape(seen)}<span class="zeros">{zeros}</span></span>'
    assert amount(nanodollars) == cell


@pytest.mark.parametrize(
    ("part", "whole", "written"),
    [(0, 0, "0.00 %"), (0, 7, "0.00 %"), (1, 50, "2.00 %"), (2, 94, "2.13 %"), (1, 30_000, "<0.01 %"),
     (1, 1, "100.00 %")],
)  # fmt: skip
def test_a_column_of_rates_has_two_decimals(part: int, whole: int, written: str) -> None:
    assert formatting.rate(part, whole) == written


@pytest.mark.parametrize(
    ("part", "whole", "written"),
    [(0, 0, "0 %"), (1, 8, "12.5 %"), (3, 7_000, "0.043 %"), (1, 1_000_000, "0.0001 %"),
     (1, 2_000_000, "<0.0001 %")],
)  # fmt: skip
def test_a_small_share_is_no_power_of_ten(part: int, whole: int, written: str) -> None:
    assert formatting.share(part, whole) == written


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_950, "1M"),
        (7_804_000_000_000_000, "7,804T"),
    ],
)
def test_big_numbers_are_short(number: int, written: str) -> None:
    assert formatting.count(number) == written


@pytest.mark.parametrize(
    ("ms", "written"),
    [
        (None, "–"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_240, "1.24 s"),
        (59_960, "1 min"),
        (125_000, "2 min 5 s"),
        (7_260_000, "2 h 1 min"),
    ],
)
def test_durations_are_what_people_say(ms: float | None, written: str) -> None:
    assert formatting.duration(ms) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(-3, "just now"), (40, "40 s ago"), (190, "3 min ago"), (172_800, "2 d ago"), (9e6, "2026-08-09")],
)
def test_ages_are_relative_while_that_says_something(seconds: float, written: str) -> None:
    assert formatting.age(NOW - timedelta(seconds=seconds), NOW) == written


def test_the_date_of_an_old_moment_is_the_readers() -> None:
    with timezone.override("Europe/Berlin"):
        shown = figures.ago(datetime(2024, 8, 31, 22, 30, tzinfo=UTC))
    assert shown.endswith('title="2024-09-01 00:30:00 CEST">2024-09-01</time>')


def test_a_change_needs_something_to_compare_with() -> None:
    assert formatting.change(5, None) is None
    assert formatting.change(5, 0) == formatting.Change("from 0", "up")
    assert formatting.change(-5, 0) == formatting.Change("from 0", "down")
    assert formatting.change(0, 0) == formatting.Change("±0 %", "same")
    assert formatting.change(110, 100) == formatting.Change("+10 %", "up")
    assert formatting.change(50, 100) == formatting.Change("−50 %", "down")
    assert formatting.change(100, 100) == formatting.Change("±0 %", "same")
    assert formatting.change(3_000, 100) == formatting.Change("more than tenfold", "up")
    # More was given back than was spent, and then something was spent.
    assert formatting.change(100, -100) is None
    assert formatting.change(-100, 100) == formatting.Change("−200 %", "down")


def test_bars_stack_to_their_columns_height() -> None:
    chart = overview_chart.draw(
        [Bucket("1", "one"), Bucket("2", "two")], [Group("a", [1, 0]), Group("b", [3, 8])], str
    )
    first, second = chart.columns
    assert [bar.title for bar in first.bars] == ["b: 3", "a: 1"]
    assert [bar.title for bar in second.bars] == ["b: 8"]
    assert float(first.bars[0].y[:-1]) == pytest.approx(
        float(first.bars[1].y[:-1]) + float(first.bars[1].height[:-1])
    )
    assert (chart.is_empty, [each.total for each in chart.legend]) == (False, ["11", "1"])


def test_a_correction_beyond_the_spend_is_a_number_of_the_table_and_no_bar() -> None:
    days = [Bucket("1", "one"), Bucket("2", "two")]
    trend = trends.draw("Spend", "6", days, [trends.Layer("spend", "colour-0", [-4, 10])], str)
    chart = overview_chart.draw(days, [Group("a", [-4, 10]), Group("b", [9, -8])], str)
    assert [len(column.bars) for column in trend.columns] == [0, 1]
    assert [len(column.bars) for column in chart.columns] == [1, 1]
    bars = [bar for column in trend.columns for bar in column.bars]
    shapes = [(y, height) for _, y, height in bars]
    shapes += [(bar.y, bar.height) for column in chart.columns for bar in column.bars]
    for y, height in shapes:
        assert float(y[:-1]) >= 0
        assert 0 < float(height[:-1]) <= 100
    assert [column.cells for column in trend.columns] == [["-4"], ["10"]]
    cancelled = overview_chart.draw(days, [Group("a", [4, -4])], str)
    assert (cancelled.is_empty, [column.total for column in cancelled.columns]) == (False, ["4", "-4"])


def test_groups_without_a_colour_of_their_own_are_one() -> None:
    groups = [*(Group(str(value), [value]) for value in range(1, 9)), Group("other", [100], is_rest=True)]
    legend = overview_chart.draw([Bucket("", "")], groups, str).legend
    assert [each.group.name for each in legend] == ["8", "7", "6", "5", "4", "3", "other"]
    assert legend[-1].total == "103"


def test_the_group_of_the_others_leads_to_all_groups() -> None:
    groups = [Group(str(value), [value]) for value in range(1, 8)]
    legend = overview_chart.draw([Bucket("", "")], groups, str, "/all").legend
    assert [each.group.url for each in legend] == [*[""] * 6, "/all"]


def test_others_without_any_value_are_not_in_the_legend() -> None:
    days = [Bucket("1", "one"), Bucket("2", "two")]
    groups = [Group(str(value), [value, 1]) for value in range(1, 7)]
    empty = [Group("none", [0, 0]), Group("other", [0, 0], is_rest=True)]
    assert len(overview_chart.draw(days, [*groups, *empty], str).legend) == 6
    # Corrections may cancel spend of another day.
    cancelled = Group("other", [4, -4], is_rest=True)
    assert [each.total for each in overview_chart.draw(days, [*groups, cancelled], str).legend][-1] == "0"


def test_a_charts_total_is_that_of_all_groups() -> None:
    groups = [*(Group(str(value), [value]) for value in range(1, 9)), Group("other", [100], is_rest=True)]
    chart = overview_chart.draw([Bucket("", "")], groups, str)
    assert chart.total == chart.columns[0].total == "136"


@pytest.mark.parametrize(
    ("label", "on_a_phone"), [("28 Oct", [0, 2, 4]), ("20:00", [0, 2, 4]), ("28 Oct 00:00", [0, 5])]
)
def test_labels_do_not_collide_on_a_narrow_screen(label: str, on_a_phone: list[int]) -> None:
    marks = overview_chart.times([Bucket(label, label)] * 60)
    assert len(marks) == 6
    assert [at for at, mark in enumerate(marks) if not mark.is_minor] == on_a_phone


def test_a_chart_of_nothing_is_drawn() -> None:
    chart = overview_chart.draw([Bucket("1", "one")], [], str)
    assert (chart.is_empty, chart.columns[0].bars, chart.legend) == (True, [], [])
    assert overview_chart.draw([Bucket("1", "one")], [Group("a", [0])], str).is_empty


def generation(**times: object) -> Generation:
    """Return a generation that was admitted at noon."""
    return Generation(admitted_at=NOW, **times)


def test_a_waterfall_has_the_parts_that_there_were() -> None:
    whole = generation(
        claimed_at=NOW + timedelta(seconds=1),
        first_token_ms=500,
        last_token_ms=2_500,
        settled_at=NOW + timedelta(seconds=4),
    )
    drawn = waterfall(whole, NOW)
    assert [(span.name, span.ms, span.x) for span in drawn.spans] == [
        ("waiting for a worker", 1_000, "0.000%"),
        ("waiting for the first token", 500, "25.000%"),
        ("generating", 2_000, "37.500%"),
        ("settling", 500, "87.500%"),
    ]


def test_a_waterfall_with_tokens_but_no_first_token_time_shows_one_running_span() -> None:
    lost = generation(
        claimed_at=NOW + timedelta(seconds=1), settled_at=NOW + timedelta(seconds=9), completion_tokens=30
    )
    assert [(span.name, span.ms) for span in waterfall(lost, NOW).spans] == [
        ("waiting for a worker", 1_000),
        ("running", 8_000),
    ]
    silent = generation(
        claimed_at=NOW + timedelta(seconds=1), settled_at=NOW + timedelta(seconds=9), completion_tokens=0
    )
    assert waterfall(silent, NOW).spans[-1].name == "waiting for the first token"


def test_a_waterfall_of_what_has_not_ended_lasts_until_now() -> None:
    later = NOW + timedelta(seconds=9)
    assert [(span.name, span.ms) for span in waterfall(generation(), later).spans] == [
        ("waiting for a worker", 9_000)
    ]
    running = waterfall(generation(claimed_at=NOW + timedelta(seconds=2)), later)
    assert [(span.name, span.ms) for span in running.spans] == [
        ("waiting for a worker", 2_000),
        ("running", 7_000),
    ]
