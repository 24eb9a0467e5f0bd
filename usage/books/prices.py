"""Which price is in effect for whom, and setting a new one."""

from bisect import bisect_right
from collections import defaultdict
from datetime import datetime

from accounts.models import Organization
from usage import pricing
from usage.database.clock import database_now
from usage.models import Discount, Price


def current() -> dict[str, pricing.Price]:
    """The price in effect now for each priced model, before any discount."""
    rows = Price.objects.filter(effective_from__lte=database_now()).order_by("model", "effective_from")
    return {row.model: row.value for row in rows}  # the latest one of a model comes last and stays


def current_discounts() -> dict[int, int]:
    """The basis points that organizations pay less now, by their id; `pricing.discounted` applies them."""
    rows = Discount.objects.filter(effective_from__lte=database_now()).order_by(
        "organization_id", "effective_from"
    )
    return {row.organization_id: row.basis_points for row in rows}


def change(model: str, price: pricing.Price, effective_from: datetime | None = None) -> bool:
    """Give the model this price from that moment (now by default) on; False when it is its price already."""
    row = Price(model=model, effective_from=effective_from or database_now(), **price.columns())
    if not is_change(row):
        return False
    row.save()
    return True


def is_change(row: Price) -> bool:
    """Return whether a price that is not saved yet differs from the one in effect when it begins."""
    earlier = Price.objects.filter(model=row.model, effective_from__lte=row.effective_from)
    last = earlier.order_by("-effective_from").first()
    return last is None or last.value != row.value


def discount(organization: Organization, basis_points: int, effective_from: datetime | None = None) -> None:
    """Let the organization pay so much less from that moment (now by default) on, until the next discount; 0
    ends it.
    """
    Discount.objects.create(
        organization=organization, basis_points=basis_points, effective_from=effective_from or database_now()
    )


class History:
    """All prices that a model ever had and all discounts, as the rows say today."""

    def __init__(self, model: str) -> None:
        rows = Price.objects.filter(model=model).order_by("effective_from")
        self._prices = [(row.effective_from, row.value) for row in rows]
        self._discounts: defaultdict[int, list[tuple[datetime, int]]] = defaultdict(list)
        for organization_id, start, points in Discount.objects.order_by("effective_from").values_list(
            "organization_id", "effective_from", "basis_points"
        ):
            self._discounts[organization_id].append((start, points))

    def at(self, moment: datetime, organization_id: int) -> pricing.Price | None:
        """What the model costs the organization at that moment; None before its first price."""
        position = bisect_right(self._prices, moment, key=lambda row: row[0])
        if not position:
            return None
        discounts = self._discounts[organization_id]
        applied = bisect_right(discounts, moment, key=lambda row: row[0])
        return pricing.discounted(self._prices[position - 1][1], discounts[applied - 1][1] if applied else 0)
