"""The report compares within a round, and says plainly what was missed or wrong."""

import msgspec

from bench import compare_protocols
from bench.measurement import Cost, Measurement, Percentiles
from bench.report import GOALS, Results, answers_per_second, cpu_by_process, problems, table
from bench.scenarios import SCENARIOS


def measured(
    rate: float, *, ttft_ms: float = 1.0, problems: dict[str, int] | None = None, **cpu_ms: float
) -> Measurement:
    return Measurement(
        model="tok64-d0",
        requests=100,
        right=100,
        problems=problems or {},
        wall_seconds=1.0,
        answers_per_second=rate,
        ttft_ms=Percentiles(ttft_ms, ttft_ms, ttft_ms),
        total_ms=None,
        lag_ms=None,
        cost={
            name: Cost(value, value * 10, 50, 40, 1) for name, value in {"upstream": 0.5, **cpu_ms}.items()
        },
        load_cores=0.3,
        other_cores=0.0,
        calibration_ms=20.0,
    )


def results() -> Results:
    """Return three rounds on a machine that becomes slower: chatapi keeps its distance within each."""
    return Results(
        SCENARIOS["saturate"],
        {
            "direct": [measured(2000)] * 3,
            "passthrough-starlette": [measured(rate, server=4) for rate in (200, 100, 50)],
            "chatapi": [measured(rate, ttft_ms=5, web=2, worker=1) for rate in (240, 120, 60)],
        },
    )


def test_ratios_are_taken_within_a_round() -> None:
    assert results().ratio("chatapi", "passthrough-starlette", answers_per_second) == 1.2
    assert results().ratio("chatapi", "not-there", answers_per_second) is None


def test_cpu_is_split_by_process_without_the_upstream() -> None:
    runs = results().runs
    assert cpu_by_process(runs["chatapi"]) == "3.00 = web 2.00 + worker 1.00"
    assert cpu_by_process(runs["direct"]) == "0.50"


def test_a_table_has_a_row_for_each_target() -> None:
    lines = table(results()).splitlines()
    assert [line.split(" | ")[:3] for line in lines if "chatapi" in line] == [["| chatapi", "120", "1.20"]]
    assert {line.count("|") for line in lines if line.startswith("|")} == {11}


def test_a_goal_says_met_missed_or_not_measured() -> None:
    saturate, _sequential, paced = GOALS
    assert saturate.verdict(results(), "chatapi").endswith(
        "**1.20** (rounds 1.20 to 1.20, 3 of 3 within the bound), wanted ≥ 1.1: met"
    )
    assert saturate.verdict(results(), "passthrough-starlette").endswith(
        " 0 of 3 within the bound), wanted ≥ 1.1: MISSED"
    )
    assert paced.verdict(results(), "chatapi").endswith("not measured")


def test_a_goal_says_how_its_rounds_scatter() -> None:
    _saturate, sequential, _paced = GOALS
    runs = {"direct": [measured(1)] * 3, "chatapi": [measured(1, ttft_ms=ttft_ms) for ttft_ms in (5, 8, 13)]}
    verdict = sequential.verdict(Results(SCENARIOS["sequential"], runs), "chatapi")
    assert verdict.endswith("**7.00** (rounds 4.00 to 12.00, 2 of 3 within the bound), wanted ≤ 8: met")


def test_a_goal_in_ms_says_what_it_would_be_where_it_was_set() -> None:
    _saturate, sequential, _paced = GOALS
    slow = {
        "direct": [measured(1)],
        "passthrough-starlette": [measured(1, ttft_ms=2.8)],
        "chatapi": [measured(1, ttft_ms=11)],
    }
    verdict = sequential.verdict(Results(SCENARIOS["sequential"], slow), "chatapi")
    assert verdict.endswith(
        "MISSED (5.00 at the speed of the bound: added ms of the pass-through 0.9 there, 1.8 here)"
    )
    del slow["passthrough-starlette"]
    assert sequential.verdict(Results(SCENARIOS["sequential"], slow), "chatapi").endswith("MISSED")


def test_problems_of_all_rounds_are_added() -> None:
    runs = [
        measured(1, problems={"no usage": 1}),
        measured(1, problems={"no usage": 2, "timeout": 1}),
        measured(1),
    ]
    assert problems(runs) == "no usage x 3; timeout x 1"
    assert problems([measured(1)]) == "none"


def test_a_round_without_a_right_answer_does_not_hide_the_ratios_of_the_others() -> None:
    right = measured(200, web=2)
    wrong = msgspec.structs.replace(right, right=0, cost={})
    shown = compare_protocols.table({"chat": [right, wrong], "messages": [right, right]})
    assert "| messages | 200 | 2.00 | 1.000 (1.000 to 1.000) |" in shown
    assert "| 0.00 | – |" in compare_protocols.table({"chat": [wrong]})
