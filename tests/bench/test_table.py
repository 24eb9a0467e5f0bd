"""The performance table says met or missed by its rule, and the page has no figure that was not measured."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.children import PROJECT_FOLDER
from bench.measurement import Cost, Measurement, Percentiles
from bench.table import page, pictures
from bench.table.results import CLOSE, MET, MISSED, Measured, Parts, Reading, load, newest, problems, save
from bench.table.rows import PARTS, ROWS
from bench.table.run import Plan, contestants

DOCS = PROJECT_FOLDER / "docs"
RESULTS = PROJECT_FOLDER / "bench" / "results"
MEASURED_UNITS = re.compile(r"\d[\d.,]* ?(?:ms|µs|us|MB|KB|GB|%|x\b|streams/s|requests/s|/s\b)")
STREAMS = next(row for row in ROWS if row.name == "streams")
CPU = next(row for row in ROWS if row.name == "cpu")


def measured(rate: float, **cpu_ms: float) -> Measurement:
    return Measurement(
        model="tok64-d0",
        requests=100,
        right=100,
        problems={},
        wall_seconds=1.0,
        answers_per_second=rate,
        ttft_ms=Percentiles(1, 1, 1),
        total_ms=None,
        lag_ms=None,
        cost={
            name: Cost(value, value * 10, 50, 40, 1) for name, value in {"upstream": 0.5, **cpu_ms}.items()
        },
        load_cores=0.3,
        other_cores=0.0,
        calibration_ms=20.0,
    )


def parts(**rates: list[float]) -> Parts:
    runs = {
        name.replace("_", " "): [measured(rate, web=2, worker=1) for rate in rates[name]] for name in rates
    }
    runs = {name.replace("one and one", "1+1"): each for name, each in runs.items()}
    return {"streams": Measured("abc", "now", "python -m bench.table", "a machine", 4, 1_000, runs)}


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([1.3, 1.25, 1.2], MET),
        ([1.24, 1.2, 1.3, 1.1], CLOSE),
        ([1.24, 1.24, 1.24], MISSED),
        ([1.0, 1.1, 1.05], MISSED),
        ([1.24], MISSED),
    ],
)
def test_a_miss_is_held_against_the_scatter_of_its_rounds(rounds: list[float], verdict: str) -> None:
    assert Reading(STREAMS, "sqlite", rounds).verdict == verdict


def test_an_upper_bound_is_missed_above_it() -> None:
    assert [Reading(CPU, "sqlite", [value]).verdict for value in (1.0, 1.1, 1.2)] == [MET, MET, MISSED]
    assert Reading(CPU, "postgresql", [1.2]).verdict == MET


def test_the_table_compares_within_a_round() -> None:
    found = page.verdicts(
        parts(portkey=[100, 50], sqlite_one_and_one=[130, 65], postgresql_one_and_one=[90, 45])
    )
    line = next(line for line in found.splitlines() if "over Portkey's" in line)
    assert "≥ 1.25 | 1.30 (1.30–1.30): met | ≥ 1 | 0.90 (0.90–0.90): missed" in line
    assert {line.count("|") for line in found.splitlines()} == {6}
    assert found.count("not measured") == 2 * (len(ROWS) - 1)


def test_the_accounted_floor_is_held_against_the_same_bounds() -> None:
    found = page.accounted(parts(portkey=[100, 50], sqlite_accounted=[150, 75], sqlite_one_and_one=[130, 60]))
    streams = [line for line in found.splitlines() if line.startswith("| 64-token streams")]
    assert [line.split(" | ")[1:4] for line in streams] == [
        ["accounted floor", "≥ 1.25", "1.50 (1.50–1.50): met"],
        ["accounted floor, msgspec", "≥ 1.25", "not measured"],
        ["chatapi", "≥ 1.25", "1.25 (1.20–1.30): met"],
    ]
    assert {line.count("|") for line in found.splitlines()} == {7}


def test_a_wrong_answer_and_a_wrong_ledger_are_named() -> None:
    wrong = parts(portkey=[100])
    wrong["streams"].runs["portkey"][0].problems["no usage"] = 2
    wrong["streams"].ledger["sqlite plain"] = "1 difference"
    assert problems(parts(portkey=[100])) == []
    assert problems(wrong) == [
        "streams, portkey, round 1: {'no usage': 2}",
        "streams, ledger of sqlite plain: 1 difference",
    ]


def test_runs_are_kept_as_they_are(tmp_path: Path) -> None:
    save(parts(floor=[1.5, 2.5]), tmp_path / "2026-01-02.json")
    save({}, tmp_path / "2026-01-01.json")
    assert newest(tmp_path).name == "2026-01-02.json"
    assert load(newest(tmp_path)) == parts(floor=[1.5, 2.5])


def test_pictures_are_whole_and_need_nothing_else() -> None:
    drawn = pictures.drawn(parts(floor=[100, 200, 300], sqlite_one_and_one=[50]))
    assert len(drawn) == 3
    for picture in drawn.values():
        names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()}
        assert names <= {"svg", "style", "text", "rect", "title", "line"}
        assert "prefers-color-scheme:dark" in picture
        assert not re.search(r"url\(|@import|href", picture)
    assert "floor, streamed: 200" in drawn["performance-throughput.svg"]
    assert "chatapi, SQLite, web: 2.00" in drawn["performance-cpu.svg"]


def test_the_plan_is_bounded_before_it_begins() -> None:
    few, many = (Plan(["sqlite"], rounds, 4, 0).estimated_s(list(PARTS)) for rounds in (1, 9))
    assert few < many < 3_600
    assert [each.name for each in contestants(PARTS[1], ["sqlite"])] == [
        "direct",
        "floor",
        "portkey",
        "sqlite 1+1",
        "sqlite accounted",
        "sqlite accounted msgspec",
    ]


def test_the_page_and_its_pictures_are_those_of_the_newest_runs() -> None:
    runs, text = load(newest(RESULTS)), (DOCS / page.PAGE).read_text()
    command = f"python -m bench.table --svg bench/results/{newest(RESULTS).name}"
    assert page.filled(text, runs) == text, command
    for name, picture in pictures.drawn(runs).items():
        assert (DOCS / name).read_text() == picture, command
        assert f"]({name})" in text


def test_no_figure_of_the_page_is_written_by_hand() -> None:
    text = (DOCS / page.PAGE).read_text()
    assert set(page.BLOCKS) == {found[2] for found in page.MARKER.finditer(text)}
    by_hand = page.MARKER.sub("", text)
    assert MEASURED_UNITS.findall(by_hand) == []
    assert MEASURED_UNITS.findall(f"{by_hand} It adds 3 ms and costs 15 % more.") == ["3 ms", "15 %"]


def test_the_newest_runs_have_no_wrong_answer() -> None:
    assert problems(load(newest(RESULTS))) == []
