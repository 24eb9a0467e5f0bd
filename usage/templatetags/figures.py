"""The template filters of the operator's pages."""

from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from usage import formatting
from usage.books import receipts
from usage.models import Generation, State
from usage.pages import figures

register = template.Library()
register.filter("duration", figures.duration)
register.filter("usd", formatting.usd)


@register.filter
def money(nanodollars: int | None) -> SafeString | str:
    """The amount, short, with its exact value as the title."""
    if nanodollars is None:
        return "–"
    return format_html('<span title="{}">{}</span>', formatting.usd(nanodollars), figures.money(nanodollars))


@register.filter
def count(number: int | None) -> SafeString | str:
    """The number, short, with its exact value as the title."""
    if number is None:
        return "–"
    return format_html('<span title="{}">{}</span>', f"{number:,}", figures.count(number))


@register.filter
def exact(number: int | None) -> str:
    """All digits, in groups."""
    return "–" if number is None else f"{number:,}"


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """The age of a moment, with the moment itself as the title."""
    if moment is None:
        return "–"
    utc = moment.astimezone(UTC)
    written = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        utc.isoformat(),
        written,
        figures.age(moment, timezone.now()),
    )


@register.filter
def utc(moment: datetime | None) -> str:
    """The moment in UTC, to the millisecond."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


@register.filter
def words(name: Any) -> str:
    """A name of the code as people read it: "client_cancelled" is "client cancelled"."""
    return str(name).replace("_", " ")


_MOODS = {
    "completed": "good",
    "client_cancelled": "plain",
    "failed": "bad",
    "worker_lost": "bad",
    "not_started": "bad",
}


@register.filter
def badge(row: Generation) -> SafeString:
    """How a request ended, or where it stands, with its colour."""
    mood = _MOODS.get(row.outcome, "warn" if row.state == State.ADMITTED else "")
    text = row.outcome or ("waiting" if row.state == State.ADMITTED else row.state)
    return format_html('<span class="badge {}">{}</span>', mood, words(text))


@register.filter
def total_ms(row: Generation) -> int | None:
    """From admission to settlement."""
    return receipts.total_ms(row)
