"""An outage is an event when it begins, once a day while it lasts, and when it ends."""

from dataclasses import replace
from datetime import datetime, timedelta
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import keys
from tests.cast import Person, run
from tests.usage.conftest import plan
from usage.database.clock import database_now
from usage.models import MAX_SUBJECT_CHARS, NEWEST_OF_OUTAGE, Event, EventKind, Generation, Outcome
from usage.notifications import outages, texts
from usage.pricing import FREE, Tokens

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def now(db: None) -> datetime:
    return database_now()


def look(now: datetime, *down: str) -> list[str]:
    """Look with two processes at once, a while after another one did; return the kinds of the new events."""
    before = set(Event.objects.values_list("pk", flat=True))
    deployments, models = [each for each in down if " " in each], [each for each in down if " " not in each]
    found = [outages.changes(now, deployments, models) for _ in range(2)]
    outages.write(now, found)
    assert outages.changes(now, deployments, models) == []
    return sorted(Event.objects.exclude(pk__in=before).values_list("kind", flat=True))


def answer(person: Person, at: datetime, took: timedelta = timedelta(), **changes: object) -> None:
    """Complete a request that began at this time."""
    with patch("tests.cast.database_now", lambda: at + took):
        row = run(person, **changes)  # type: ignore[arg-type]
    Generation.objects.filter(pk=row.pk).update(admitted_at=at)


def fail(person: Person) -> None:
    run(person, outcome=Outcome.FAILED, tokens=Tokens())


def test_a_model_that_is_down_concerns_those_that_called_it(
    alice: Person, charlie: Person, now: datetime
) -> None:
    run(alice, model="large")
    run(charlie)
    test_key, secret = keys.create_key(charlie.project, name="ci", is_test=True)
    run(replace(charlie, api_key=test_key, key=secret), model="large", price=FREE)  # by the sandbox
    assert look(now, "large") == ["model.down"]
    row = Event.objects.get()
    assert row.organization_id == alice.project.organization_id
    assert row.data == {"model": "large", "since": now.isoformat()}


def test_an_outage_of_days_is_an_event_each_day_and_one_at_its_end(alice: Person, now: datetime) -> None:
    fail(alice)
    start = now - 12 * HOUR  # the midnight of UTC is no border
    assert look(start, "small") == ["model.down"]
    for hours in (1, 12, 23):
        assert look(start + hours * HOUR, "small") == []
    assert look(start + DAY, "small") == ["model.down"]
    assert look(start + DAY + MINUTE, "small") == []
    end = start + DAY + HOUR
    answer(alice, end)
    assert look(end, "small") == []
    assert look(end + MINUTE) == ["model.up"]
    assert look(end + 2 * MINUTE) == []
    began = f"{start:%Y-%m-%d %H:%M} UTC"
    assert [texts.sentence(row) for row in Event.objects.order_by("created_at")] == [
        f"The model small has not answered since {began}.",
        f"The model small has not answered since {began}.",
        f"The model small answers again. It was down since {began}.",
    ]


def test_silence_and_what_fails_do_not_end_an_outage(alice: Person, now: datetime) -> None:
    answer(alice, now - MINUTE)
    assert look(now, "small") == ["model.down"]
    # Such as after a restart of Redis, which has forgotten the cool-downs.
    fail(alice)
    answer(alice, now + MINUTE, model="large")
    assert look(now + 2 * MINUTE) == []
    assert look(now + outages.FORGET_AFTER + MINUTE) == []


def test_an_answer_that_took_long_ends_an_outage_too(alice: Person, now: datetime) -> None:
    fail(alice)
    assert look(now, "small") == ["model.down"]
    answer(alice, now - MINUTE, took=20 * MINUTE)  # began before
    assert look(now + 20 * MINUTE) == []
    answer(alice, now + MINUTE, took=20 * MINUTE)
    assert look(now + 22 * MINUTE) == ["model.up"]


def test_what_fails_again_and_again_is_down_once_an_hour(alice: Person, now: datetime) -> None:
    start = now - 3 * HOUR
    found = []
    fail(alice)
    for minutes in range(0, 120, 10):
        at = start + minutes * MINUTE
        found += look(at, "small")
        answer(alice, at + MINUTE)
        found += look(at + 2 * MINUTE)
    assert found == ["model.down", "model.up"] * 2


@pytest.mark.parametrize(("model", "name"), [("small", "gpu-1"), ("m" * 128, "g" * 128)], ids=["", "long"])
def test_a_deployment_is_up_again_when_it_answers_itself(
    alice: Person, now: datetime, model: str, name: str
) -> None:
    assert look(now, f"{model} {name}") == ["deployment.down"]
    answer(alice, now + MINUTE, model=model, deployment="gpu-2")
    assert look(now + MINUTE) == []
    answer(alice, now + MINUTE, model=model, deployment=name)
    assert look(now + MINUTE) == ["deployment.up"]
    row = Event.objects.get(kind=EventKind.DEPLOYMENT_UP)
    assert len(row.subject) <= MAX_SUBJECT_CHARS  # PostgreSQL refuses a longer one, SQLite does not
    assert (row.organization_id, row.data["deployment"]) == (None, name)
    assert texts.sentence(row).startswith(f"The deployment {name} of {model} answers again.")


def test_a_look_reads_one_event_of_each_outage(alice: Person, now: datetime) -> None:
    fail(alice)
    for hour in range(20):
        at = now + hour * HOUR
        assert look(at, "small", "small gpu-1") == ["deployment.down", "model.down"]
        answer(alice, at + MINUTE, deployment="gpu-1")
        assert look(at + 2 * MINUTE) == ["deployment.up", "model.up"]
    assert Event.objects.count() == 80
    assert Event.objects.filter(NEWEST_OF_OUTAGE).count() == 2
    with CaptureQueriesContext(connection) as queries:
        outages.changes(now + 20 * HOUR, [], [])
    (newest,) = [query["sql"] for query in queries if "usage_event" in query["sql"]]
    # Of so few events, PostgreSQL may take any index.
    if connection.vendor == "sqlite":
        assert "events_not_followed" in plan(newest)


def test_events_that_an_older_release_followed_are_not_the_newest(alice: Person, now: datetime) -> None:
    fail(alice)
    look(now, "small")
    answer(alice, now + MINUTE)
    look(now + 2 * MINUTE)
    Event.objects.update(followed_at=None)
    assert look(now + 3 * MINUTE) == []
    assert look(now + 2 * HOUR, "small") == ["model.down"]
    assert Event.objects.filter(followed_at=None).count() == 1


def test_of_two_looks_at_the_same_change_the_later_one_marks_nothing_more(
    alice: Person, now: datetime
) -> None:
    fail(alice)
    look(now, "small")
    answer(alice, now + MINUTE)
    found = [outages.changes(now + minutes * MINUTE, [], []) for minutes in (2, 3)]
    for minutes, events in zip((2, 3), found, strict=True):
        outages.write(now + minutes * MINUTE, [events])
    assert Event.objects.filter(followed_at=None).get().kind == "model.up"


def test_an_event_of_an_older_release_begins_an_outage_too(alice: Person, now: datetime) -> None:
    pk = alice.project.organization_id
    fail(alice)
    Event.objects.create(
        organization_id=pk,
        kind=EventKind.MODEL,
        subject=f"organization/{pk}/small",
        period=str(now.date()),
        data={"model": "small"},
        created_at=now,
    )
    assert look(now + HOUR, "small") == []
    assert texts.sentence(Event.objects.get()) == "The model small does not answer."
    answer(alice, now + HOUR)
    assert look(now + HOUR) == ["model.up"]
    assert Event.objects.get(kind=EventKind.MODEL_UP).data["since"] == now.isoformat()
