"""A soak without faults notices what grows."""

from pathlib import Path

import pytest
from django.db import connection

from chatapi.serving import embedded_valkey
from tests.faults.soak_growth import BOUNDS, Curve, Growth, grown
from tests.installation import Installation, wait_for


def test_a_curve_compares_its_first_third_with_its_last() -> None:
    assert Curve.of([1, 2, 3, 100, 5, 5, 8, 9, 10]) == Curve(2, 9, 100)


@pytest.mark.parametrize("figure", BOUNDS)
def test_a_figure_that_grows_beyond_its_bound_is_named(figure: str) -> None:
    most = 200.0 * BOUNDS[figure].factor + BOUNDS[figure].and_more
    assert grown({("web", figure): Curve(200.0, most, most)}) == []
    (said,) = grown({("web", figure): Curve(200.0, most + 1, most + 1)})
    assert said.startswith(f"web: {figure} grew from 200.0")


def test_samples_are_taken_of_each_process_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.soak_growth.SAMPLE_S", 0.01)
    with Installation(tmp_path) as installation:
        installation.start_valkey()
        installation.run("web", ["sleep", "60"])
        url = f"unix://{embedded_valkey.socket_path(tmp_path)}"
        growth = Growth(installation, {"valkey": url, "same": url})
        growth.watch()
        wait_for(lambda: len(growth._samples["same", "keys"]) > 3, "samples")
        curves = growth.stop()
    of_processes = {(name, figure) for name in ("web", "valkey") for figure in ("memory MB", "descriptors")}
    of_valkeys = {(name, figure) for name in ("valkey", "same") for figure in ("connections", "keys")}
    of_database = {("postgresql", "connections")} if connection.vendor == "postgresql" else set()
    assert set(curves) == of_processes | of_valkeys | of_database
    assert curves["valkey", "connections"].most == 2
    assert curves["web", "memory MB"].most > 0
