"""Issuing of statements: once all days of a month are itemized, each organization gets one, for ever.

A statement is one row, so that a process that dies leaves none or a whole one, and of several processes that
write it at once, one does. It is not written if it disagrees with the rollups of the ledger.
"""

import logging
from hashlib import sha256
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import OuterRef, Subquery

from accounts.models import Organization
from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.books.prices import History
from usage.database.clock import database_now
from usage.database.snapshot import snapshot
from usage.failpoints import failpoint
from usage.models import DailyItem, EventKind, LedgerSeal, Statement
from usage.rollups.closed_days import midnight
from usage.statements import document, itemizing, month_items
from usage.statements.document import Facts, StatementDocument
from usage.statements.month import Month

log = logging.getLogger(__name__)


class Due(NamedTuple):
    """A statement that can be issued."""

    organization_id: int
    month: Month


def due(organization_id: int | None = None) -> list[Due]:
    """Return the next statement of each organization, or of one, if its month is over and itemized."""
    until = itemizing.itemized_until()
    if until is None:
        return []
    # One look into an index for each organization.
    last = Statement.objects.filter(organization=OuterRef("pk")).order_by("-month").values("month")[:1]
    first = DailyItem.objects.filter(organization=OuterRef("pk")).order_by("day").values("day")[:1]
    rows = Organization.objects.annotate(last=Subquery(last), first=Subquery(first))
    rows = rows if organization_id is None else rows.filter(pk=organization_id)
    found = [
        Due(organization_id, Month.of(last_month).next if last_month else Month.of(first_day))
        for organization_id, last_month, first_day in rows.values_list("pk", "last", "first")
        if first_day
    ]
    return [due for due in found if due.month.end <= midnight(until)]


def issue(which: Due) -> Statement | None:
    """Issue the statement; None if another process has issued it, or, with an error in the log and an event
    for operators, if it disagrees with the rollups or the database refuses it.

    Any number of processes may call it at the same time, outside of transactions.
    """
    with snapshot():
        if _is_issued(which):
            return None
        total = month_items.rollups(which.organization_id, which.month)
        made = _closed_document(which, total.requests)
    charged = made.totals.charged.nanodollars
    if charged != total.amount_nanodollars:
        reason = f"its lines are {charged} n$, the hourly usage is {total.amount_nanodollars} n$"
        log.error(
            "the statement %s of organization %s is not issued: %s. Run verifyledger.",
            *(which.month, which.organization_id, reason),
        )
        report_failure(which, f"{reason}; run verifyledger")
        return None
    content = document.encode(made)
    failpoint("statement.before_tx")
    try:
        with transaction.atomic():
            row = Statement.objects.create(
                organization_id=which.organization_id,
                month=which.month.first_day,
                charged_nanodollars=charged,
                closing_balance_nanodollars=made.totals.closing_balance.nanodollars,
                content=content,
                digest=sha256(content.encode()).hexdigest(),
                issued_at=database_now(),
            )
            failpoint("statement.in_tx")
    except IntegrityError as error:
        if not _is_issued(which):
            log.error(
                "the statement %s of organization %s is not issued: the database refuses it: %s",
                *(which.month, which.organization_id, error),
            )
            report_failure(which, "the database refuses it, as the reaper's log says")
        return None
    failpoint("statement.after_commit")
    return row


def report_failure(which: Due, reason: str) -> None:
    """Write the event of a statement that can't be issued, unless operators have the one of this month."""
    organization = Organization.objects.get(pk=which.organization_id)
    data = {
        "organization_id": str(organization.pk),
        "organization": organization.name,
        "month": str(which.month),
        "reason": reason,
    }
    subject = f"organization/{organization.pk}"
    event = NewEvent(EventKind.STATEMENT, None, subject, str(which.month), "", data)
    with transaction.atomic():
        outbox.write(database_now(), [event])


def _is_issued(which: Due) -> bool:
    return Statement.objects.filter(organization=which.organization_id, month=which.month.first_day).exists()


def _closed_document(which: Due, requests: int) -> StatementDocument:
    before = Statement.objects.filter(organization=which.organization_id).order_by("-month").first()
    seal = LedgerSeal.objects.order_by("-id").first()
    days = month_items.itemized(which.organization_id, which.month, which.month.next.first_day)
    discounts = History(which.organization_id).discounts_of(which.organization_id)
    return document.build(
        Facts(
            which.organization_id,
            Organization.objects.get(pk=which.organization_id).name,
            which.month,
            which.month.end,
            is_closed=True,
            opening_nanodollars=before.closing_balance_nanodollars if before else 0,
            requests=requests,
            days=sorted(days.items()),
            projects=month_items.projects(which.organization_id),
            discounts=month_items.discounts(discounts, which.month, which.month.end),
            newest_seal=seal.digest if seal else None,
        )
    )
