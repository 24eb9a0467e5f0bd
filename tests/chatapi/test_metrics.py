"""`GET /metrics`: its token, and that its numbers are those of the books."""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from pytest_django.fixtures import Settings

from accounts import keys
from chatapi.api import metrics
from chatapi.models import ServedModel
from chatapi.notifications import webhooks
from chatapi.notifications.dispatch import dispatch
from chatapi.notifications.models import Delivery, WebhookEndpoint
from chatapi.process_metrics import COUNTERS, GAUGES, HISTOGRAMS
from tests.cast import Person, admit, run
from tests.chatapi.worker.processes import Valkey
from tests.installation import ROOT
from usage import insights
from usage.books import corrections, ledger, outbox
from usage.books.credit import Note
from usage.books.outbox import NewEvent
from usage.database.clock import database_now
from usage.models import (
    BudgetLimit,
    EventKind,
    Generation,
    HourlyUsage,
    Kind,
    LedgerCheck,
    LedgerEntry,
    LedgerSeal,
    Outcome,
)
from usage.pricing import FREE, Tokens
from usage.rollups import closing

TOKEN = "a-token-of-16-or-more"
PROCESS_METRICS = {each.name for each in HISTOGRAMS} | {
    f"{gauge.name}_total" if gauge.only_grows else gauge.name for gauge in GAUGES
}
PROCESS_METRICS |= {f"{counter.name}_total" for counter in COUNTERS}
"""What each process writes into Redis."""
DUE, DELIVERED, FAILED = Delivery.State.DUE, Delivery.State.DELIVERED, Delivery.State.FAILED
Samples = dict[tuple[str, frozenset[str]], float]


@pytest.fixture(autouse=True)
def _fresh(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the page, and read the books for each request."""
    settings.METRICS_TOKEN = TOKEN
    monkeypatch.setattr(metrics, "MAX_AGE_S", 0.0)


def ask(authorization: str = f"Bearer {TOKEN}", **headers: str) -> Any:
    return Client().get("/metrics", headers={"authorization": authorization, **headers})


def samples() -> Samples:
    """Return each number by its name and the values of its labels."""
    families = parse_text(ask().content.decode())
    return {
        (each.name, frozenset(each.labels.values())): each.value
        for family in families
        for each in family.samples
    }


def number(found: Samples, name: str, *labels: str) -> float:
    return found[f"chatapi_{name}", frozenset(labels)]


@pytest.fixture
def used(alice: Person, charlie: Person, small: ServedModel) -> Generation:
    """Make a request of each outcome, an overage, corrections in both directions, a waiting and a running
    request.
    """
    for outcome in Outcome:
        run(alice, outcome=outcome)
    run(charlie, tokens=Tokens(1_000, 90_000, reasoning_tokens=7))
    charge = LedgerEntry.objects.filter(kind=Kind.CHARGE).earliest("id")
    corrections.correct(charge.pk, -20, Note("cut off", "alice"))
    corrections.correct(charge.pk, 5, Note("not so much", "alice"))
    running = admit(alice)
    ledger.claim(database_now(), [ledger.Claim(running.pk, "worker-1", 6_000)])
    return admit(alice)


# ---- access


def test_without_the_setting_there_is_no_page(db: None, settings: Settings) -> None:
    settings.METRICS_TOKEN = ""
    assert [ask().status_code, ask("").status_code, ask("Bearer ").status_code] == [404, 404, 404]


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer é"],
)
def test_without_the_token_nobody_gets_in_and_no_database_is_asked(authorization: str) -> None:
    answer = ask(authorization)
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, 'Bearer realm="metrics"')
    assert TOKEN not in answer.content.decode()


def test_a_clients_key_is_no_token(alice: Person) -> None:
    assert ask(f"Bearer {alice.key}").status_code == 401


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_while_the_books_cannot_be_read_there_are_no_numbers(
    db: None, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def read() -> None:
        raise error("server closed the connection: host=db.internal")

    monkeypatch.setattr(insights, "counters", read)
    response = ask()
    assert (response.status_code, response.content) == (503, b"The database does not answer.\n")


def test_the_scheme_may_be_in_any_case_and_nothing_is_kept_on_the_way(db: None) -> None:
    answer = ask(f"bearer {TOKEN}")
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]


# ---- what it says


def test_requests_are_counted_by_outcome_and_by_model(used: Generation) -> None:
    found = samples()
    for outcome in Outcome:
        assert (
            number(found, "requests_total", outcome) == Generation.objects.filter(outcome=outcome).count() > 0
        )
    assert number(found, "model_requests_total", "small") == 6
    assert number(found, "model_failed_requests_total", "small") == 3


def test_tokens_are_those_of_the_ledger(used: Generation) -> None:
    found, charges = samples(), LedgerEntry.objects.filter(kind=Kind.CHARGE)
    for kind, column in {"input": "prompt_tokens", "output": "completion_tokens"}.items():
        assert number(found, "tokens_total", "small", kind) == sum(charges.values_list(column, flat=True))
    for column in ("cached_tokens", "reasoning_tokens"):
        assert number(found, f"{column}_total", "small") == sum(charges.values_list(column, flat=True)) > 0


def test_money_is_that_of_the_ledger_to_the_nanodollar(used: Generation) -> None:
    found = samples()

    def dollars(name: str, *labels: str) -> int:
        return round(number(found, f"{name}_dollars_total", "small", *labels) * 10**9)

    by_kind = {
        kind: list(LedgerEntry.objects.filter(kind=kind).values_list("amount_nanodollars", flat=True))
        for kind in Kind
    }
    assert dollars("charged") == sum(by_kind[Kind.CHARGE] + by_kind[Kind.OVERAGE])
    assert (number(found, "overages_total", "small"), dollars("overage")) == (1, sum(by_kind[Kind.OVERAGE]))
    assert [dollars("corrected", direction) for direction in ("raised", "lowered")] == [5, 20]
    assert [
        number(found, "corrections_total", "small", direction) for direction in ("raised", "lowered")
    ] == [1, 1]


def test_what_is_counted_stays_when_its_day_is_closed(
    used: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counters(found: Samples) -> Samples:
        return {name: value for name, value in found.items() if name[0].endswith("_total")}

    before, tomorrow = counters(samples()), database_now() + timedelta(days=1, hours=2)
    monkeypatch.setattr(closing, "database_now", lambda: tomorrow)
    assert closing.close_next()
    assert counters(samples()) == before


def test_what_was_never_used_is_zero_and_not_missing(alice: Person, small: ServedModel) -> None:
    found = samples()
    assert [number(found, "requests_total", outcome) for outcome in Outcome] == [0] * len(Outcome)
    run(alice)
    assert number(samples(), "overage_dollars_total", "small") == 0


@pytest.fixture
def tester(alice: Person) -> Person:
    """Return alice with a test key."""
    row, key = keys.create_key(alice.project, name="ci", is_test=True)
    return replace(alice, api_key=row, key=key)


@pytest.mark.parametrize("closes_the_day", [False, True])
def test_what_test_keys_do_is_not_counted(
    used: Generation, tester: Person, monkeypatch: pytest.MonkeyPatch, closes_the_day: bool
) -> None:
    before = {name: value for name, value in samples().items() if name[0].endswith("_total")}
    for outcome in (Outcome.FAILED, Outcome.COMPLETED, Outcome.WORKER_LOST):
        run(tester, outcome=outcome, price=FREE)
    if closes_the_day:
        tomorrow = database_now() + timedelta(days=1, hours=2)
        monkeypatch.setattr(closing, "database_now", lambda: tomorrow)
        assert closing.close_next()
    assert {name: value for name, value in samples().items() if name[0].endswith("_total")} == before


def test_a_model_that_only_test_keys_have_used_is_there_with_zeros(
    tester: Person, small: ServedModel
) -> None:
    run(tester, outcome=Outcome.FAILED, price=FREE)
    found = samples()
    assert (
        number(found, "requests_total", "failed")
        == number(found, "model_failed_requests_total", "small")
        == 0
    )
    assert number(found, "tokens_total", "small", "input") == 0


def test_it_tells_what_waits_runs_and_is_late(used: Generation) -> None:
    minute_ago = database_now() - timedelta(minutes=1)
    Generation.objects.filter(pk=used.pk).update(admitted_at=minute_ago, lease_expires_at=minute_ago)
    found = samples()
    assert [number(found, "generations_in_flight", state) for state in ("queued", "running")] == [1, 1]
    assert 60 <= number(found, "queue_oldest_age_seconds") < 120
    assert 60 <= number(found, "lease_overdue_seconds") < 120
    assert number(found, "ledger_unsealed_entries") == LedgerEntry.objects.count()


@pytest.mark.parametrize(
    ("queue_class", "left_s", "age_s"),
    [(None, 90, 60), (1, 90, 60), (2, 90, 0), (3, 90, 0), (2, 30, 60), (3, 30, 60)],
)
def test_the_age_of_the_queue_leaves_out_other_classes_for_half_of_their_time(
    used: Generation, queue_class: int | None, left_s: int, age_s: int
) -> None:
    now, minute = database_now(), timedelta(minutes=1)
    Generation.objects.filter(pk=used.pk).update(
        admitted_at=now - minute, lease_expires_at=now + timedelta(seconds=left_s), queue_class=queue_class
    )
    found = samples()
    assert age_s <= number(found, "queue_oldest_age_seconds") < age_s + 60
    assert number(found, "generations_in_flight", "queued") == 1


@pytest.mark.parametrize(("limit", "near", "at"), [(1_000, 1, 1), (290_000, 1, 0), (1_000_000, 0, 0)])
def test_budgets_at_their_limit_are_counted(alice: Person, limit: int, near: int, at: int) -> None:
    run(alice)
    BudgetLimit.objects.create(scope="key", scope_id=alice.api_key.pk, period="ever", limit_nanodollars=limit)
    found = samples()
    assert (number(found, "budgets_near_limit"), number(found, "budgets_at_limit")) == (near, at)


def test_events_and_deliveries_that_do_not_arrive_are_counted(alice: Person) -> None:
    now, pk = database_now(), alice.project.organization_id
    for _ in range(3):
        webhooks.add(WebhookEndpoint(organization_id=pk, url="https://example.com"))
    working, _, disabled = WebhookEndpoint.objects.order_by("pk")
    hours = (100, 80, 3, 2)  # given up before yesterday, given up, tried, waiting
    for ago in hours:
        at = now - timedelta(hours=ago)
        outbox.write(at, [NewEvent(EventKind.SPEND, pk, "x", str(ago), "", {})])
        dispatch(at)
    states = dict(zip(hours, (FAILED, FAILED, DUE, DUE), strict=True))
    for delivery in Delivery.objects.select_related("event"):
        is_working = delivery.endpoint_id == working.pk
        state = DELIVERED if is_working else states[int(delivery.event.period)]
        tried = 0 if delivery.event.period == "2" else 5
        Delivery.objects.filter(pk=delivery.pk).update(state=state, attempts=tried)
    WebhookEndpoint.objects.filter(pk=disabled.pk).update(is_enabled=False)
    outbox.write(now - timedelta(minutes=9), [NewEvent(EventKind.SPEND, pk, "x", "new", "", {})])
    found = samples()
    states_of_webhooks = {"waiting": 1, "retrying": 1, "failed": 2}  # those of a disabled one only if failed
    for name, expected in states_of_webhooks.items():
        assert number(found, "deliveries", "webhook", name) == expected
        assert number(found, "deliveries", "mail", name) == 0
    assert 3 * 3600 <= number(found, "delivery_oldest_age_seconds", "webhook") < 3 * 3600 + 60
    assert number(found, "delivery_oldest_age_seconds", "mail") == 0
    assert 540 <= number(found, "events_oldest_age_seconds") < 600
    of_endpoints = [number(found, "webhook_endpoints", each) for each in ("working", "failing", "disabled")]
    assert of_endpoints == [1, 1, 1]


# ---- how it says it


def test_a_client_that_accepts_openmetrics_gets_that(used: Generation) -> None:
    answer = ask(accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert answer["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(answer.content.decode())  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"chatapi_requests", "chatapi_overage_dollars", "chatapi_generations_in_flight"} <= names


@pytest.mark.parametrize("version", ['"1.0.0"', "1.0.0-rc1", "latest"])
def test_a_quoted_or_invalid_version_in_accept_gets_the_numbers(used: Generation, version: str) -> None:
    answer = ask(accept=f"text/plain;version={version}")
    assert (answer.status_code, answer["Content-Type"].partition(";")[0]) == (200, "text/plain")


def test_labels_name_models_and_our_own_words_and_no_tenants(used: Generation, alice: Person) -> None:
    text = ask().content.decode()
    labels = {name for family in parse_text(text) for each in family.samples for name in each.labels}
    assert labels == {"model", "outcome", "kind", "direction", "state", "server", "reason"}
    for trace in ("Acme", "Umbrella", "alice", "charlie", alice.api_key.public, used.pk.hex):
        assert trace not in text


@pytest.fixture
def kept(db: None) -> datetime:
    """Books that were sealed and checked, and found wrong, at this moment."""
    now = database_now()
    digests = {"previous_digest": "0" * 64, "digest": "1" * 64, "fingerprints": b""}
    LedgerSeal.objects.create(
        first_id=1, last_id=1, entries_count=1, sum_nanodollars=0, sealed_at=now, **digests
    )
    LedgerCheck.objects.create(checked_at=now, differences=3, first_difference="I2: …")
    return now


def test_it_tells_when_the_books_were_sealed_and_checked(kept: datetime) -> None:
    found = samples()
    for name in ("seal", "check"):
        assert number(found, f"ledger_last_{name}_timestamp_seconds") == kept.timestamp()
    assert number(found, "ledger_differences") == 3


def test_it_tells_whether_the_broker_answers(db: None, settings: Settings, tmp_path: Path) -> None:
    with Valkey(tmp_path) as valkey:
        settings.BROKER_URL, settings.STREAMS_URL = (
            f"unix://{valkey.socket}",
            f"unix://{tmp_path}/nobody.sock",
        )
        assert (number(samples(), "broker_up"), number(samples(), "stream_server_up", "0")) == (1, 0)
        settings.BROKER_URL, settings.STREAMS_URL = settings.STREAMS_URL, settings.BROKER_URL
        assert (number(samples(), "broker_up"), number(samples(), "stream_server_up", "0")) == (0, 1)


def test_the_manual_names_each_metric(used: Generation, kept: datetime) -> None:
    manual = (ROOT / "docs" / "metrics.md").read_text()
    there = {name for name, _ in samples()} | PROCESS_METRICS
    assert set(re.findall(r"\bchatapi_\w+", manual)) == there


def test_a_model_may_have_any_name(alice: Person) -> None:
    name = 'quo"ted\\and\nbroken'
    run(alice)
    HourlyUsage.objects.update(model=name)
    assert number(samples(), "model_requests_total", name) == 1


def test_all_that_is_asked_of_the_database_is_a_few_questions(used: Generation) -> None:
    with CaptureQueriesContext(connection) as queries:
        ask()
    assert len(queries) <= 30


def test_two_questions_within_a_second_get_the_same_answer(
    used: Generation, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    first = ask().content
    monkeypatch.setattr(metrics, "MAX_AGE_S", 60.0)
    with django_assert_num_queries(0):
        assert ask().content == first
