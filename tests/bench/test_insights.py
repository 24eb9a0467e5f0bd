"""The bench of pages fails for what is slow, asks too much or is too heavy, and says which page it is."""

from typing import Any

import pytest

from bench.insights_reads import Cost, judged

GOOD = Cost(ms=900, queries=12, kb=149, is_page=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ms": 1_001}, "BEYOND the bounds: wrong, 1001 ms."),
        ({"queries": 13}, "BEYOND the bounds: wrong, 13 queries."),
        ({"kb": 151}, "BEYOND the bounds: wrong, 151 kB."),
    ],
)
def test_what_exceeds_a_bound_is_named(
    change: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not judged({"good": GOOD, "wrong": GOOD._replace(**change)})
    assert text in capsys.readouterr().out


def test_a_route_may_be_heavy(capsys: pytest.CaptureFixture[str]) -> None:
    assert judged({"good": GOOD, "route": GOOD._replace(kb=400, is_page=False)})
    assert "The heaviest page: good, 149 kB of at most 150." in capsys.readouterr().out
