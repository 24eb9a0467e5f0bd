"""The times to first token in the console's Usage: those of the operators' Overview."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db.models import F
from django.test import Client

from accounts.models import Organization
from tests import cast
from tests.admin_pages import client_of
from tests.cast import Person
from tests.chatapi.console_pages import url
from usage.database.clock import database_now
from usage.formatting import duration
from usage.insights import speed
from usage.models import Generation
from usage.rollups import closing
from usage.rollups.first_token_buckets import bucket_of, ms_of

pytestmark = pytest.mark.usefixtures("small")
Use = Callable[..., Generation]


@pytest.fixture
def today(db: None) -> datetime:
    return database_now().replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Serve one request at that moment."""

    def use(person: Person, moment: datetime, first_token_ms: int, **changes: Any) -> Generation:
        with monkeypatch.context() as patch:
            patch.setattr(cast, "database_now", lambda: moment)
            return cast.run(person, first_token_ms=first_token_ms, last_token_ms=9_999, **changes)

    return use


@pytest.fixture
def busy(used: Use, today: datetime, alice: Person, bob: Person, charlie: Person) -> None:
    """Write two days of which the newest requests are the fastest, and two requests today."""
    for days, slow_ms in ((4, 9_000), (3, 3_000)):
        for minute in range(8):
            slow, fast = (today - timedelta(days=days, minutes=-each - minute) for each in (60, 600))
            used(alice, slow, slow_ms)
            used(bob, fast, 100, model="other")
        used(charlie, today - timedelta(days=days, minutes=-900), 1)
    for first_ms in (200, 400):
        used(alice, today, first_ms)
    while closing.close_next():
        pass


def shown(person: Person, **query: object) -> tuple[str, list[list[str]]]:
    """Return the whole range's time to first token, and p95 and p50 of its columns."""
    page = client_of(person.user).get(url(person, f"usage?{urlencode(query)}"))
    (trend,) = [each for each in page.context["trends"] if each.title == "Time to first token"]
    return str(trend.whole), [list(column.cells) for column in trend.columns]


def of_operator(root: Client, **query: object) -> tuple[str, str]:
    """Return p50 and p95 of the operators' Overview."""
    cards = root.get(f"/admin/?{urlencode(query)}").context["cards"]
    (card,) = [each for each in cards if each.title.startswith("First token")]
    return card.value, card.lines[0].value


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("narrowed", ["", "project", "key"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_they_are_those_that_the_operator_sees(
    alice: Person, root: Client, today: datetime, zone: str, narrowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "SAMPLE", 2)
    monkeypatch.setattr(speed, "SEARCHED", 2)
    Organization.objects.update(time_zone=zone)
    owner = {"": {}, "project": {"project": alice.project.pk}, "key": {"key": alice.api_key.pk}}[narrowed]
    same = owner | {"organization": alice.project.organization_id, "time_zone": zone}
    first, second, last = (f"{today - timedelta(days=days):%Y-%m-%d}" for days in (4, 3, 0))
    for start, end in ((first, last), (first, second), (first, first), (last, last)):
        for bucket in ("day", "hour"):
            over = {"start": start, "end": end, "bucket": bucket}
            p50, p95 = of_operator(root, **same, **over)
            whole, columns = shown(alice, **owner, **over)
            assert whole == f"p50 {p50}, p95 {p95}", over
            if start == end and bucket == "day":
                assert columns == [[p95, p50]], over


@pytest.mark.usefixtures("busy")
def test_durations_beside_counted_days_are_whole_milliseconds(alice: Person) -> None:
    Generation.objects.update(settled_at=F("admitted_at") + timedelta(seconds=2))
    page = client_of(alice.user).get(url(alice, "usage?days=7"))
    (trend,) = [each for each in page.context["trends"] if each.title == "Duration"]
    assert trend.whole == "typically 2 s"


@pytest.mark.usefixtures("busy")
def test_the_requests_of_closed_days_are_all_counted(
    alice: Person, today: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "SAMPLE", 2)
    _, columns = shown(alice, days=5)
    slow, slower = (duration(ms_of(bucket_of(ms))) for ms in (3_000, 9_000))
    assert [cells[0] for cells in columns[:4]] == [slower, slow, "–", "–"]
    # Of an organization's model there are samples only.
    assert [cells[0] for cells in shown(alice, days=5, model="other")[1][:2]] == ["100 ms", "100 ms"]
