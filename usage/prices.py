"""Which price is in effect, and setting a new one."""

from datetime import datetime

from usage import pricing
from usage.clock import database_now
from usage.models import Price


def current() -> dict[str, pricing.Price]:
    """The price in effect now for each priced model."""
    rows = Price.objects.filter(effective_from__lte=database_now()).order_by("model", "effective_from")
    return {row.model: row.value for row in rows}  # the latest one of a model comes last and stays


def change(model: str, price: pricing.Price, effective_from: datetime | None = None) -> bool:
    """Give the model this price from that moment (now by default) on; False when it is its price already."""
    start = effective_from or database_now()
    last = Price.objects.filter(model=model, effective_from__lte=start).order_by("-effective_from").first()
    if last is not None and last.value == price:
        return False
    Price.objects.create(
        model=model,
        effective_from=start,
        input_per_mtok_nanodollars=price.input_per_mtok_nanodollars,
        cached_input_per_mtok_nanodollars=price.cached_input_per_mtok_nanodollars,
        output_per_mtok_nanodollars=price.output_per_mtok_nanodollars,
    )
    return True
