"""The report of a soak: tables, waits, and what must not have happened."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.soak_growth import Trends
from tests.faults.soak_load import Pace
from tests.faults.soak_verdict import Verdict
from tests.faults.soak_visits import Visit

MOST_VIOLATIONS = 50


def print_report(verdict: Verdict, faults: "Counter[str]", visits: Sequence[Visit], folder: Path) -> None:
    """Print all counts and the violations."""
    asked = {"faults": faults, "visits": Counter(f"{visit.protocol} {visit.act}" for visit in visits)}
    for title, counts in (asked | verdict.tables).items():
        print(f"{title} ({counts.total()})")
        for name, count in counts.most_common():
            print(f"  {name or '-':<32}{count:>8}")
    for title, waits in verdict.waits.items():
        print(f"{title:<34}{waits}")
    for violation in verdict.violations[:MOST_VIOLATIONS]:
        print(f"VIOLATION  {violation}")
    conclusion = f"the logs stay in {folder}" if verdict.violations else "all is well"
    print(f"\n{len(verdict.violations)} violations; {conclusion}.")


def print_steady(pace: Pace, trends: Trends) -> None:
    """Print the load of a run without faults, and the course of each figure."""
    print(pace)
    for (owner, figure), trend in sorted(trends.items()):
        print(f"{owner + ' ' + figure:<26}{trend}")
