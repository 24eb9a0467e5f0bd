"""The hostile benchmark: one short attack on a real service, the bounds of its rows, and the documentation of
every attack.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.hostile.attacks import ATTACKS, select
from bench.hostile.measurement import Attacked, Outcome, Probe, Stream, Witnessed, outcome
from bench.hostile.report import comparison, table

ROOT = Path(__file__).parents[2]
NAMED = ("an-attack", "no key", "What it does")
NOTHING = Attacked({}, 0, 0, 0.0)
DAY = 100_000.0
"""When the attack begins."""


def stream(*gaps: float, problem: str = "") -> Stream:
    """Return a stream with paced tokens before the attack, and with these gaps during it."""
    arrivals = [DAY - 0.03, DAY - 0.01]
    for gap in gaps:
        arrivals.append(arrivals[-1] + gap)
    return Stream(arrivals, problem)


def judged(
    *streams: Stream,
    probe_seconds: float = 0.01,
    request: str = "",
    growth_mb: float = 1.0,
    attackers: int = 1,
) -> Outcome:
    probes = [Probe(DAY - 1, 0.01), Probe(DAY + 1, probe_seconds)]
    witnessed = Witnessed(list(streams), probes, [], [Probe(DAY + 1, 0.02, request)])
    return outcome(NAMED, attackers, DAY, witnessed, NOTHING, {"web": growth_mb})


def test_a_list_ends_quietly_when_its_reader_has_left() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "bench.hostile", "--list"]
    done = subprocess.run(
        command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_one_attack_on_a_service_of_its_own(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "bench.hostile",
        "--attacks",
        "garbage",
        "--seconds",
        "2",
        "--json",
        str(results),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in {0, 1}, done.stderr  # a busy machine may miss a bound
    (found,) = msgspec.json.decode(results.read_bytes(), type=list[Outcome])
    assert (found.name, found.failure, found.streams) == ("garbage", "", {"whole": 8})
    assert found.quiet_gap_ms > 0
    assert found.probes > 20
    assert found.attacked.sent_bytes > 1_000_000
    assert not found.attacked.error
    assert "| garbage | no key |" in done.stdout


def test_an_attack_that_nobody_notices_passes() -> None:
    assert judged(stream(0.02, 0.2)).violations == []


@pytest.mark.parametrize(
    ("found", "violations"),
    [
        (judged(stream(0.02, 0.3)), ["gap"]),
        (judged(stream(0.02, 0.3), attackers=20), []),
        (judged(stream(0.02), probe_seconds=0.3), ["probe"]),
        (judged(stream(0.02), stream(0.02, problem="no [DONE]")), ["streams"]),
        (judged(stream(0.02), request="status 503"), ["requests"]),
        (judged(stream(0.02), growth_mb=101), ["memory"]),
    ],
    ids=["a gap", "a gap, 20 attackers", "a slow probe", "a broken stream", "a refused request", "memory"],
)
def test_each_bound_is_named_where_it_is_missed(found: Outcome, violations: list[str]) -> None:
    assert found.violations == violations
    assert ("pass" in table([found])) is not bool(violations)


def test_two_releases_are_printed_beside_each_other() -> None:
    before, after = judged(stream(0.02, 5.0), stream(0.02, problem="no [DONE]")), judged(stream(0.02, 0.1))
    (line,) = comparison([after], [before]).splitlines()[2:]
    assert line == "| an-attack: What it does | no key | 5000 → 100 | 10 → 10 | 1 → 0 | 1 → 1 | pass |"


def test_gaps_before_the_attack_are_quiet() -> None:
    found = judged(stream(0.5))
    assert found.quiet_gap_ms == pytest.approx(20, abs=1)
    assert found.worst_gap_ms == pytest.approx(500, abs=1)


def test_attacks_are_chosen_by_name_and_by_what_the_attacker_has() -> None:
    assert [attack.name for attack in select(["tls-*", "nothing"])] == ["nothing", "tls-hello"]
    assert {attack.who for attack in select(["test key"])} == {"test key"}
    with pytest.raises(ValueError, match="no attack is named tsl-hello"):
        select(["tsl-hello"])


def test_every_attack_says_in_a_sentence_what_it_does() -> None:
    unclear = [
        attack.name for attack in ATTACKS.values() if not re.fullmatch(r"[A-Z`0-9].{14,119}", attack.summary)
    ]
    assert not unclear
