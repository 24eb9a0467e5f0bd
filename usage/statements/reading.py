"""Reads of statements: issued ones, and previews of months that are not closed."""

from datetime import UTC, date, datetime
from typing import NamedTuple

from django.db.models import QuerySet

from accounts.models import Organization
from usage.database.clock import clock_in_statement
from usage.database.sql import db_value, fetch_all, to_date, to_datetime
from usage.models import LedgerSeal, Statement
from usage.rollups.closed_days import DAY, midnight
from usage.statements import document
from usage.statements.document import StatementDocument
from usage.statements.issuing import due
from usage.statements.month import Month
from usage.statements.preview import preview


class Reading(NamedTuple):
    """A statement to be read; without a row it is a preview."""

    document: StatementDocument
    content: str
    """The document as JSON; for a closed month, the sealed text."""
    row: Statement | None = None


class _Progress(NamedTuple):
    """How far the closing of months has come."""

    now: datetime
    itemized_until: date | None
    """The day before which all days are itemized; None if there is none."""
    statement_id: int | None

    @classmethod
    def read(cls, organization_id: int | None = None, month: Month | None = None) -> "_Progress":
        """Return the progress, and the id of the organization's statement if one is issued."""
        now_sql, own = clock_in_statement()
        issued_id = "(SELECT id FROM usage_statement WHERE organization_id = %s AND month = %s)"
        (row,) = fetch_all(
            f"SELECT {now_sql}, (SELECT MAX(day) FROM usage_itemizedday), {issued_id}",  # noqa: S608  ours
            [*own, organization_id, month and db_value(month.first_day)],
        )
        now, last, statement_id = row
        until = to_date(last) + DAY if last else None
        return cls(to_datetime(now).replace(tzinfo=UTC), until, statement_id)

    @property
    def open_months(self) -> list[Month]:
        current = Month.of(self.now)
        is_last_closed = self.itemized_until is None or midnight(self.itemized_until) >= current.start
        return [current] if is_last_closed else [current, current.previous]


def read(rows: QuerySet[Statement], organization: Organization, month: Month) -> Reading | None:
    """Return the organization's statement among the rows, or the preview; None if there is neither."""
    progress = _Progress.read(organization.pk, month)
    # A month may have been issued and yet be open: while days are itemized anew.
    if progress.statement_id is not None:
        row = rows.filter(pk=progress.statement_id).first()
        return Reading(document.decode(row.content), row.content, row) if row else None
    # A closed month keeps its preview until its statement is issued, which waits for those of months before.
    current = Month.of(progress.now)
    if month not in progress.open_months and not any(
        each.month <= month < current for each in due(organization.pk)
    ):
        return None
    made = preview(organization, month, progress.now)
    return Reading(made, document.encode(made))


def open_months() -> list[Month]:
    """Return the months that are not closed: the current one, and for about an hour the one before."""
    return _Progress.read().open_months


def last_sealed_id() -> int:
    """Return the id of the last statement whose digest is in the ledger's chain."""
    sealed = LedgerSeal.objects.order_by("-id").values_list("last_statement_id", flat=True).first()
    return sealed or 0
