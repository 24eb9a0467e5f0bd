"""Template filters for amounts, counts, times and states."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from usage import formatting
from usage.books import receipts
from usage.insights import Totals
from usage.models import Generation, State
from usage.pages.columns import amount
from usage.pages.filters import words
from usage.statements.sections import Column, Section

register = template.Library()
register.filter("duration", formatting.duration)
register.filter("usd", formatting.usd)
register.filter("amount", amount)
register.filter("short", formatting.count)
register.filter("words", words)
register.filter("total_ms", receipts.total_ms)


@register.filter
def money(nanodollars: int | None) -> SafeString | str:
    """Return the rounded amount, with the exact one as its title."""
    if nanodollars is None:
        return "–"
    return format_html(
        '<span title="{}">{}</span>', formatting.usd(nanodollars), formatting.money(nanodollars)
    )


@register.filter
def breakable(name: str) -> SafeString:
    """Return the name with a place for a line break after each slash, hyphen and at sign."""
    return format_html_join(SafeString("<wbr>"), "{}", ((part,) for part in re.split("(?<=[/@-])", name)))


@register.filter
def count(number: int | None) -> SafeString | str:
    """Return the rounded number, with the exact one as its title."""
    if number is None:
        return "–"
    return format_html('<span title="{}">{}</span>', f"{number:,}", formatting.count(number))


@register.filter
def exact(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


@register.filter
def cells(section: Section, row: Sequence[str]) -> list[tuple[Column, str]]:
    """Return the texts of a statement's row, each with its column."""
    return list(zip(section.columns, row, strict=True))


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """Return the age of the moment, with the moment as its title."""
    if moment is None:
        return "–"
    local = timezone.localtime(moment)
    written = f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}"
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.astimezone(UTC).isoformat(),
        written,
        formatting.age(local, timezone.now()),
    )


@register.filter
def clock(moment: datetime | None) -> str:
    """Return the moment in the page's time zone, to the millisecond."""
    return "–" if moment is None else f"{timezone.localtime(moment):%Y-%m-%d %H:%M:%S.%f}"[:-3]


@register.filter
def utc(moment: datetime | None) -> str:
    """Return the moment in UTC, to the millisecond."""
    return "–" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


@register.filter
def kinds_of_tokens(row: Generation | Totals) -> str:
    """Return the tokens of each kind; the three kinds of input add up to the prompt."""
    read, written = row.cached_tokens or 0, row.cache_write_tokens or 0
    uncached = row.prompt_tokens - read - written
    kinds = {"uncached input": uncached, "cached input": read, "cache write": written}
    kinds["output"] = row.completion_tokens
    return ", ".join(f"{number:,} {name}" for name, number in kinds.items())


_MOODS = {
    "completed": "good",
    "client_cancelled": "plain",
    "failed": "bad",
    "worker_lost": "bad",
    "not_started": "bad",
}


@register.filter
def badge(row: Generation) -> SafeString:
    """Return the outcome or state of the request as a coloured badge."""
    mood = _MOODS.get(row.outcome, "warn" if row.state == State.ADMITTED else "")
    text = row.outcome or ("waiting" if row.state == State.ADMITTED else row.state)
    return format_html('<span class="badge {}">{}</span>', mood, words(text))
