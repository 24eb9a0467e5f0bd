"""The statement of a month that is not closed, as of now: the current month, and the last one for an hour."""

from datetime import datetime

from accounts.models import Organization
from usage.books import credit
from usage.books.prices import History
from usage.database.replica import report
from usage.database.snapshot import snapshot
from usage.rollups.closed_days import DAY
from usage.statements import document, itemizing, month_items
from usage.statements.document import Facts, StatementDocument
from usage.statements.month import Month


@report
def preview(organization: Organization, month: Month, now: datetime) -> StatementDocument:
    """Return the statement of a month that has begun, from the itemized days and what came since."""
    with snapshot(has_time_limit=True):
        until = itemizing.itemized_until()
        history = History(organization.pk)
        found = month_items.so_far(organization.pk, month, until, now.date() + DAY, history)
        moved = sum(sums.amount_nanodollars for items in found.days.values() for sums in items.values())
        return document.build(
            Facts(
                organization.pk,
                organization.name,
                month,
                min(now, month.end),
                is_closed=False,
                # The balance of now, without what has moved since the month began.
                opening_nanodollars=credit.balance(organization).nanodollars + moved,
                requests=found.requests,
                days=[each for each in sorted(found.days.items()) if each[0] < month.next.first_day],
                projects=month_items.projects(organization.pk),
                discounts=month_items.discounts(history.discounts_of(organization.pk), month),
            )
        )
