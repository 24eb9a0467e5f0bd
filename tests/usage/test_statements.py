"""Statements: what an organization owes for a month, to the nanodollar, and never changed."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import keys
from accounts.models import APIKey, Organization
from chatapi.doctor import failed_statements
from chatapi.doctor.finding import Level
from chatapi.worker.reaper import housekeeping
from tests.usage.billing_months import NOTE, NOW, START, close_all, keys_of, live, set_clock, set_prices, use
from tests.usage.triggers import without_triggers
from usage.books import corrections, credit, outbox
from usage.books.corrections import Correction
from usage.books.prices import History
from usage.database.group_commit import GroupCommit
from usage.database.sql import fetch_all
from usage.models import (
    SPENT,
    DailyItem,
    Discount,
    Event,
    EventKind,
    HourlyUsage,
    ItemizedDay,
    Kind,
    LedgerEntry,
    Statement,
)
from usage.notifications import texts
from usage.rollups import closing
from usage.rollups.closed_days import midnight
from usage.statements import document, issuing, itemizing, month_items, reading
from usage.statements.document import StatementDocument
from usage.statements.month import Month
from usage.statements.preview import preview
from usage.verification import seals, verify

JANUARY, FEBRUARY, MARCH = (Month(2026, number) for number in (1, 2, 3))


def ledger_of(key: APIKey, month: Month) -> dict[str, int]:
    """Return the ledger's sums of the month."""
    rows = LedgerEntry.objects.filter(
        organization=key.project.organization_id, created_at__gte=month.start, created_at__lt=month.end
    )
    sums = dict(rows.order_by().values_list("kind").annotate(Sum("amount_nanodollars")))
    return {
        "charged": sum(sums.get(kind, 0) for kind in SPENT),
        "corrections": sums.get(Kind.CORRECTION, 0),
        "granted": -sums.get(Kind.GRANT, 0),
        "refunded": sums.get(Kind.REFUND, 0),
    }


def totals_of(made: StatementDocument) -> dict[str, int]:
    return {
        name: getattr(made.totals, name).nanodollars
        for name in ("charged", "corrections", "granted", "refunded")
    }


def costs_of(secret: str, month: Month) -> int:
    """Return what `/v1/organization/costs` says, which also counts in nanodollars."""
    client = Client(headers={"authorization": f"Bearer {secret}"})
    query = f"start_time={int(month.start.timestamp())}&end_time={int(month.end.timestamp())}&limit=31"
    buckets = client.get(f"/v1/organization/costs?{query}&group_by=line_item").json()["data"]
    return sum(round(result["amount"]["value"] * 10**9) for each in buckets for result in each["results"])


def exported(key: APIKey, month: Month, folder: Path) -> int:
    """Return the sum of the export of the month's ledger."""
    period = [f"--from={month.start.isoformat()}", f"--to={month.end.isoformat()}"]
    owner = f"--organization={key.project.organization.name}"
    call_command("exportusage", *period, owner, f"--output={folder}", "--format=ndjson")
    rows = map(json.loads, (folder / "usage.ndjson").read_text().splitlines())
    return sum(row["amount_nanodollars"] for row in rows if row["kind"] in SPENT)


@pytest.fixture
def lived(db: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[list[APIKey]]]:
    """Write a random history of two organizations."""

    def make(seed: int) -> list[list[APIKey]]:
        chance = random.Random(seed)
        organizations = [keys_of(name) for name in ("Acme", "Umbrella")]
        set_prices(chance, organizations[0])
        for each in organizations:
            live(chance, each, monkeypatch)
        return organizations

    return make


@pytest.mark.parametrize("seed", range(3))
def test_a_statement_has_the_sums_of_the_ledger_the_costs_api_and_the_exports(
    lived: Callable[[int], list[list[APIKey]]], seed: int, tmp_path: Path
) -> None:
    organizations = lived(seed)
    close_all()
    for number, (key, _) in enumerate(organizations):
        _, secret = keys.create_key(key.project, name="books", is_admin=True)
        balance = 0
        for month in (JANUARY, FEBRUARY, MARCH):
            made = made_of(key, month)
            known = ledger_of(key, month)
            assert totals_of(made) == known
            assert made.totals.charged.nanodollars == costs_of(secret, month)
            assert made.totals.charged.nanodollars == exported(key, month, tmp_path / f"{number}{month}")
            assert made.totals.opening_balance.nanodollars == balance
            balance += known["granted"] - known["refunded"] - known["charged"]
            assert made.totals.closing_balance.nanodollars == balance
            lines_add_up(made)
        assert balance == credit.balance(key.project.organization).nanodollars
    assert [str(each) for each in verify().differences] == []


def made_of(key: APIKey, month: Month) -> StatementDocument:
    """Return the statement of a closed month, or the preview of the current one."""
    owner = key.project.organization
    if month == MARCH:
        return preview(owner, month, NOW)
    return document.decode(Statement.objects.get(organization=owner, month=month.first_day).content)


def lines_add_up(made: StatementDocument) -> None:
    """Check the lines against the totals, and each line's price against its amount."""
    assert sum(line.amount.nanodollars for line in made.lines) == made.totals.usage.nanodollars
    assert sum(line.discount.nanodollars for line in made.lines) == made.totals.discount.nanodollars
    for line in made.lines:
        assert line.list_amount.nanodollars - line.discount.nanodollars == line.amount.nanodollars
        assert line.price_per_mtok_usd is not None
        price = round(float(line.price_per_mtok_usd) * 10**9)
        assert abs(line.tokens * price / 10**6 - line.amount.nanodollars) <= line.requests / 2 + 1


def test_a_preview_of_an_old_month_is_what_its_statement_becomes(
    lived: Callable[[int], list[list[APIKey]]],
) -> None:
    ((key, _), _) = lived(9)
    before = [preview(key.project.organization, month, NOW) for month in (JANUARY, FEBRUARY)]
    close_all()
    for shown, month in zip(before, (JANUARY, FEBRUARY), strict=True):
        made = made_of(key, month)
        assert (shown.status, made.status) == ("preview", "closed")
        assert shown.totals.charged == made.totals.charged
        assert (shown.totals.opening_balance, shown.totals.closing_balance) == (
            made.totals.opening_balance,
            made.totals.closing_balance,
        )


def test_the_first_credit_of_an_installation_has_its_own_day(acme: Organization) -> None:
    entry, _ = credit.grant(acme, 20 * 10**9, NOTE)
    now = entry.created_at
    assert [row.date for row in preview(acme, Month.of(now), now).credit] == [now.date()]


def test_a_preview_has_the_discounts_that_have_begun(acme: Organization) -> None:
    for hours, points in ((-1, 1_000), (1, 2_000)):
        begin = NOW + timedelta(hours=hours)
        Discount.objects.create(organization=acme, effective_from=begin, basis_points=points)
    assert [row.percent for row in preview(acme, Month.of(NOW), NOW).discounts] == ["10"]


def test_a_busy_preview_has_the_same_sums_without_kinds(
    lived: Callable[[int], list[list[APIKey]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ((key, _), _) = lived(4)
    close_all()
    use(random.Random(4), key, NOW - timedelta(hours=1), completion=5)
    usual = made_of(key, MARCH)
    monkeypatch.setattr(month_items, "MAX_REQUESTS_BY_KIND", 0)
    busy = made_of(key, MARCH)
    same = ("requests", "usage", "corrections", "charged", "granted", "refunded", "closing_balance")
    assert [getattr(busy.totals, name) for name in same] == [getattr(usual.totals, name) for name in same]
    assert {line.kind for line in busy.lines} >= {"all_tokens"}
    assert sum(line.tokens for line in busy.lines) == sum(line.tokens for line in usual.lines)


@pytest.mark.parametrize(("bound", "most"), [("MAX_REQUESTS_BY_KIND", -1), ("MAX_ENTRIES", 0)])
def test_a_preview_beyond_its_bounds_has_sums_of_re_ratings_and_reads_few_rows(
    lived: Callable[[int], list[list[APIKey]]], monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    ((key, _), _) = lived(4)
    close_all()
    monkeypatch.setattr(month_items, bound, most)  # no request is of today
    charges = LedgerEntry.objects.filter(kind=Kind.CHARGE, organization=key.project.organization)
    rows_counts = []
    for amount in (77, 78):
        more = [Correction(charge, amount, "story", "test", is_rerating=True) for charge in charges]
        corrections.write(NOW - timedelta(hours=1), more)
        with CaptureQueriesContext(connection) as asked:
            made = made_of(key, MARCH)
        assert totals_of(made) == ledger_of(key, MARCH)
        # PostgreSQL declares a cursor for some of them.
        selects = [
            each["sql"][each["sql"].index("SELECT") :] for each in asked if "_ledgerentry" in each["sql"]
        ]
        rows_counts.append(sum(len(fetch_all(sql)) for sql in selects))
    assert rows_counts[1] == rows_counts[0]


def test_a_preview_reads_the_hours_of_days_that_are_not_itemized_only(
    lived: Callable[[int], list[list[APIKey]]],
) -> None:
    ((key, _), _) = lived(4)
    close_all()
    usual = made_of(key, MARCH)
    assert usual.totals.requests > 0
    until = itemizing.itemized_until()
    assert until is not None
    assert until > MARCH.first_day
    HourlyUsage.objects.filter(hour__lt=midnight(until)).delete()
    assert made_of(key, MARCH) == usual


@pytest.fixture
def key(db: None, monkeypatch: pytest.MonkeyPatch) -> APIKey:
    """Return a key with a request in January and one in February."""
    chance = random.Random(1)
    owners = keys_of("Acme")
    set_prices(chance, owners)
    set_clock(monkeypatch)
    for days in (1, 20):
        use(chance, owners[0], START + timedelta(days=days), completion=200)
    return owners[0]


def test_a_correction_of_a_closed_month_is_a_credit_note_of_the_next(
    key: APIKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_all()
    january = Statement.objects.get(month=JANUARY.first_day)
    charge = LedgerEntry.objects.filter(kind=Kind.CHARGE).earliest("created_at")
    corrections.correct(charge.pk, -5, NOTE)
    (note,) = made_of(key, MARCH).credit_notes
    assert (note.id, note.corrects, note.reason) == ("2026-03-CN1", "2026-01", "correction")
    assert (note.corrections, note.amount.nanodollars) == (1, -5)
    set_clock(monkeypatch, MARCH.end + timedelta(hours=1))
    close_all()
    march = document.decode(Statement.objects.get(month=MARCH.first_day).content)
    assert march.credit_notes == [note]
    january.refresh_from_db()
    assert document.decode(january.content).credit_notes == []
    assert verify().differences == []


def test_a_month_is_closed_an_hour_after_its_end(key: APIKey, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, JANUARY.end + timedelta(minutes=59))
    close_all()
    assert not Statement.objects.exists()
    set_clock(monkeypatch, JANUARY.end + timedelta(minutes=60))
    close_all()
    assert [str(row) for row in Statement.objects.all()] == ["2026-01 of Acme"]


def test_a_month_without_usage_has_a_statement_too(key: APIKey, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, datetime(2026, 5, 2, tzinfo=UTC))
    close_all()
    *_, april = Statement.objects.order_by("month")
    made = document.decode(april.content)
    assert (made.id, made.lines, made.totals.charged.nanodollars) == ("2026-04", [], 0)
    assert made.totals.opening_balance == made.totals.closing_balance


def test_issuing_again_changes_nothing(key: APIKey) -> None:
    close_all()
    before = list(Statement.objects.order_by("pk").values())
    close_all()
    assert issuing.issue(issuing.Due(key.project.organization_id, JANUARY)) is None
    assert list(Statement.objects.order_by("pk").values()) == before


def test_an_issued_statement_is_read_though_its_days_are_not_itemized(key: APIKey) -> None:
    close_all()
    ItemizedDay.objects.filter(day__gte=FEBRUARY.first_day).delete()
    found = reading.read(Statement.objects.all(), key.project.organization, FEBRUARY)
    assert found is not None
    assert found.document.status == "closed"
    assert found.row == Statement.objects.get(month=FEBRUARY.first_day)


def test_a_month_has_its_preview_until_its_statement_is_issued(
    key: APIKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_all()
    set_clock(monkeypatch, MARCH.end + timedelta(hours=1))
    while closing.close_next():
        pass
    while itemizing.itemize_next():
        pass
    rows, own = Statement.objects.all(), key.project.organization

    def status(of: Organization, month: Month) -> str | None:
        found = reading.read(rows, of, month)
        return found and found.document.status

    assert (status(own, MARCH), status(own, MARCH.next)) == ("preview", "preview")
    assert status(Organization.objects.create(name="without usage"), MARCH) is None
    assert [issuing.issue(each) for each in issuing.due()] == [rows.get(month=MARCH.first_day)]
    assert (status(own, MARCH), status(own, MARCH.next.next)) == ("closed", None)


def test_each_of_several_months_that_wait_for_their_statements_has_a_preview(
    key: APIKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_all()
    set_clock(monkeypatch, MARCH.next.end + timedelta(hours=1))
    while closing.close_next():
        pass
    while itemizing.itemize_next():
        pass
    rows, own = Statement.objects.all(), key.project.organization
    previews = [reading.read(rows, own, month) for month in (MARCH, MARCH.next)]
    assert [found and found.document.status for found in previews] == ["preview", "preview"]
    close_all()
    for before in previews:
        assert before is not None
        row = rows.get(month=before.document.month.first_day)
        assert document.decode(row.content).totals == before.document.totals


def items() -> list[dict[str, object]]:
    return sorted(({**row, "id": 0} for row in DailyItem.objects.values()), key=repr)


def test_itemizing_anew_gives_the_same_items(lived: Callable[[int], list[list[APIKey]]]) -> None:
    lived(5)
    close_all()
    before, days = items(), ItemizedDay.objects.count()
    assert itemizing.itemize_anew() == days
    assert items() == before


def test_a_day_that_a_reaper_itemizes_meanwhile_leaves_no_gap(
    key: APIKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_all()
    before, days = items(), set(ItemizedDay.objects.values_list("day", flat=True))
    DailyItem.objects.update(amount_nanodollars=1)
    ItemizedDay.objects.filter(day=max(days)).delete()
    write = itemizing.write

    def write_beside_a_reaper(day: date, found: itemizing.Items) -> None:
        write(max(days), {})
        write(day, found)

    monkeypatch.setattr(itemizing, "write", write_beside_a_reaper)
    itemizing.itemize_anew()
    assert set(ItemizedDay.objects.values_list("day", flat=True)) == days
    assert items() == before


def test_an_hour_in_parts_has_the_same_items(key: APIKey, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, sizes = random.Random(6), list[int]()
    for seconds in range(20):
        use(chance, key, START + timedelta(seconds=seconds // 2))  # two of each moment
    close_all()
    before = items()

    def items_of(rows: Iterable[tuple[Any, ...]], history: History) -> itemizing.Days:
        found = list(rows)
        sizes.append(len({created_at for created_at, *_ in found}))
        return of_all(found, history)

    of_all = itemizing.items_of
    monkeypatch.setattr(itemizing, "items_of", items_of)
    monkeypatch.setattr(closing, "MAX_ENTRIES", 3)
    itemizing.itemize_anew()
    assert items() == before
    assert max(sizes) <= 3
    assert len(sizes) > 5


def test_a_statement_that_disagrees_with_the_hourly_usage_is_not_issued(
    key: APIKey, caplog: pytest.LogCaptureFixture
) -> None:
    list(iter(itemizing.itemize_next, None))
    DailyItem.objects.filter(day__lt=FEBRUARY.first_day, amount_nanodollars__gt=0).update(
        amount_nanodollars=1
    )
    for which in [*issuing.due(), *issuing.due()]:
        assert issuing.issue(which) is None
    assert "2026-01 of organization" in caplog.text
    event = Event.objects.get(kind=EventKind.STATEMENT)
    assert (event.organization, event.data["organization"]) == (None, key.project.organization.name)
    assert texts.sentence(event).startswith("The statement 2026-01 of")
    [finding] = failed_statements.check_statements()
    assert (finding.level, finding.text) == (Level.WRONG, texts.sentence(event))
    call_command("rollup")
    close_all()
    assert Statement.objects.count() == 2
    assert list(failed_statements.check_statements()) == []
    assert verify().differences == []


REFUSING = {
    "sqlite": """CREATE TRIGGER refusing BEFORE INSERT ON usage_statement
        BEGIN SELECT RAISE(ABORT, 'out of numbers'); END""",
    "postgresql": """SET CONSTRAINTS ALL IMMEDIATE;
        ALTER TABLE usage_statement ADD CONSTRAINT "out of numbers" CHECK (FALSE)""",
}


def test_a_statement_that_the_database_refuses_is_in_the_log(
    key: APIKey, caplog: pytest.LogCaptureFixture
) -> None:
    list(iter(itemizing.itemize_next, None))
    call_command("rollup")
    with connection.cursor() as cursor:
        cursor.execute(REFUSING[connection.vendor])
    due = issuing.due()[0]
    assert issuing.issue(due) is None
    (line,) = (each.getMessage() for each in caplog.records if each.levelname == "ERROR")
    assert line.startswith(f"the statement 2026-01 of organization {due.organization_id} is not issued")
    assert "out of numbers" in line
    assert Event.objects.get(kind=EventKind.STATEMENT).period == "2026-01"


def test_the_housekeeping_issues_statements(transactional_db: None, key: APIKey) -> None:
    async def keep_house_until_done() -> None:
        commits = GroupCommit()
        keeping = asyncio.create_task(housekeeping.keep_house(commits))
        while await commits.read(Statement.objects.count) < 2:
            await asyncio.sleep(0.02)
        keeping.cancel()
        await commits.close()

    # The days of its first round, 31, are those of both months.
    asyncio.run(asyncio.wait_for(keep_house_until_done(), 60))
    assert verify().differences == []


@pytest.mark.parametrize("has_event", [True, False])
def test_an_organization_whose_statement_fails_does_not_stop_the_others(
    transactional_db: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_event: bool,
) -> None:
    chance = random.Random(1)
    keys = [keys_of("Acme")[0], keys_of("Umbrella")[0]]
    set_prices(chance, keys[1:])
    set_clock(monkeypatch)
    for each in keys:
        use(chance, each, START + timedelta(days=1), completion=200)
    list(iter(itemizing.itemize_next, None))
    call_command("rollup")
    owners = [each.project.organization_id for each in keys]
    DailyItem.objects.filter(organization=owners[0]).update(kind="unknown")

    if not has_event:
        # The outbox of events fails, too.
        monkeypatch.setattr(outbox, "write", lambda *_: 1 / 0)

    async def issue() -> None:
        commits = GroupCommit()
        await housekeeping._issue_statements(commits)
        await housekeeping._issue_statements(commits)
        await commits.close()

    asyncio.run(asyncio.wait_for(issue(), 60))
    assert set(Statement.objects.values_list("organization_id", flat=True)) == {owners[1]}
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors
    lines = {f"the statement 2026-01 of organization {owners[0]} is not issued"}
    assert set(errors) - lines == (
        set() if has_event else {f"the failed statement of organization {owners[0]} has no event"}
    )
    events = Event.objects.filter(kind=EventKind.STATEMENT).values_list("subject", "period")
    assert list(events) == ([(f"organization/{owners[0]}", "2026-01")] if has_event else [])


# ---- never changed


def test_a_statement_can_not_be_changed(key: APIKey) -> None:
    close_all()
    for change in ("UPDATE usage_statement SET content = ''", "DELETE FROM usage_statement"):
        with (
            pytest.raises(IntegrityError, match="never changed"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(change)
    assert Statement.objects.count() == 2


def test_its_digest_is_in_the_ledgers_chain_also_without_new_entries(key: APIKey) -> None:
    seals.seal(timedelta(0))
    close_all()
    sealed = seals.seal(timedelta(0))
    assert sealed is not None
    assert (sealed.entries_count, sealed.last_statement_id) == (0, Statement.objects.latest("pk").pk)
    assert seals.seal(timedelta(0)) is None
    assert verify().newest_seal == sealed.digest
    use(random.Random(2), key, NOW)
    later = seals.seal(timedelta(0))
    assert later is not None
    assert (later.entries_count, later.previous_digest) == (1, sealed.digest)
    assert later.last_statement_id == sealed.last_statement_id
    assert verify().differences == []


FORGERIES = {
    "content": "UPDATE usage_statement SET content = replace(content, 'Acme', 'Acne')",
    "content and digest": "forged",
    "amount": "UPDATE usage_statement SET charged_nanodollars = charged_nanodollars + 1",
    "deletion": "DELETE FROM usage_statement WHERE month < '2026-02-01'",
    "deletion of the last": "DELETE FROM usage_statement WHERE month > '2026-01-31'",
    "deletion of all": "DELETE FROM usage_statement",
    "items": "UPDATE usage_dailyitem SET amount_nanodollars = amount_nanodollars + 1",
}


@pytest.mark.parametrize("way", FORGERIES)
def test_verification_finds_a_forged_statement(key: APIKey, way: str) -> None:
    close_all()
    seals.seal(timedelta(0))
    assert verify().differences == []
    with without_triggers():
        if way == "content and digest":
            row = Statement.objects.latest("month")
            row.content = row.content.replace("Acme", "Acne")
            row.digest = "0" * 64
            row.save()
        else:
            with connection.cursor() as cursor:
                cursor.execute(FORGERIES[way])
    assert {each.invariant for each in verify().differences} & {"I6 sealed", "I16 statement"}


def test_the_command_names_a_forged_statement(key: APIKey, capsys: pytest.CaptureFixture[str]) -> None:
    close_all()
    with without_triggers(), connection.cursor() as cursor:
        cursor.execute(FORGERIES["content"])
    with pytest.raises(Exception, match="difference"):
        call_command("verifyledger")
    assert "the statement 2026-01 of organization" in capsys.readouterr().err
