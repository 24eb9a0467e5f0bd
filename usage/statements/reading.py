"""Statements to be read: those that are issued, and previews of the months that are not closed."""

from datetime import datetime
from typing import NamedTuple

from django.db.models import QuerySet

from accounts.models import Organization
from usage.models import LedgerSeal, Statement
from usage.rollups.closed_days import midnight
from usage.statements import document, itemizing
from usage.statements.document import StatementDocument
from usage.statements.month import Month
from usage.statements.preview import preview


class Reading(NamedTuple):
    """A statement to be read; without a row it is a preview."""

    document: StatementDocument
    content: str
    """The JSON of the document: of a closed one the text that is sealed."""
    row: Statement | None = None


def read(
    rows: QuerySet[Statement], organization: Organization, month: Month, now: datetime
) -> Reading | None:
    """Return the organization's statement among the rows, or the preview; None if there is neither."""
    # The current month has none. The last one may have been issued and yet be open: while days are itemized
    # anew.
    if month != Month.of(now):
        row = rows.filter(organization=organization, month=month.first_day).first()
        if row is not None:
            return Reading(document.decode(row.content), row.content, row)
        if month not in open_months(now):
            return None
    made = preview(organization, month, now)
    return Reading(made, document.encode(made))


def open_months(now: datetime) -> list[Month]:
    """Return the months that are not closed: the current one, and for about an hour the one before."""
    current = Month.of(now)
    until = itemizing.itemized_until()
    is_last_closed = until is None or midnight(until) >= current.start
    return [current] if is_last_closed else [current, current.previous]


def last_sealed_id() -> int:
    """Return the id of the last statement whose digest is in the ledger's chain."""
    sealed = LedgerSeal.objects.order_by("-id").values_list("last_statement_id", flat=True).first()
    return sealed or 0
