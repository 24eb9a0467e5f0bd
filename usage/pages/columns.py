"""Columns of lists: counts, times, and amounts with their points below each other; exact on a row's page."""

from collections.abc import Callable
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from unfold.decorators import display

from usage import formatting


def amount(nanodollars: int | None) -> SafeString | str:
    """Return the amount for a column; the exact one is its title.

    Zeros after the cents take their place, but are not seen. Where no amount of a column is finer than a
    cent, style sheets leave them out: so the class.
    """
    if nanodollars is None:
        return "–"
    text = formatting.amount(nanodollars)
    seen = max(len(text.rstrip("0")), text.index(".") + 3)
    return format_html(
        '<span{} title="{}">{}<span class="zeros">{}</span></span>',
        mark_safe(' class="finer"') if seen > text.index(".") + 3 else "",
        formatting.usd(nanodollars),
        text[:seen],
        text[seen:],
    )


def amounts(
    title: str, read: Callable[[Any], int | None], ordering: str | None = None, without: str = ""
) -> tuple[Any, Any]:
    """Return the methods of a `ModelAdmin` for a column of its list, and for a field of a row's page."""

    @display(description=title, ordering=ordering)
    def column(_: Any, row: Any) -> str:
        return without if (nanodollars := read(row)) is None else amount(nanodollars)

    @display(description=title)
    def exact(_: Any, row: Any) -> str:
        return without if (nanodollars := read(row)) is None else formatting.usd(nanodollars)

    return column, exact


def count_column(title: str, name: str) -> Any:
    """Return the method of a `ModelAdmin` for a column of whole numbers."""

    @display(description=title, ordering=name)
    def column(_: Any, row: Any) -> str:
        return f"{getattr(row, name):,}"

    return column


def time_column(title: str, name: str, ordering: str | None = None) -> Any:
    """Return the method of a `ModelAdmin` for a column or field of times, in UTC."""

    @display(description=f"{title} (UTC)", ordering=ordering)
    def column(_: Any, row: Any) -> str | None:
        return formatting.moment(getattr(row, name))

    return column
