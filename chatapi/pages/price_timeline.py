"""The admin's page of one model's prices, past, present and upcoming: a chart and a timeline.

The chart is shapes in percent of its plot, so that its text keeps its size at any width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.views.decorators.http import require_POST, require_safe

from chatapi.models import ServedModel
from usage import pricing
from usage.books import prices
from usage.database.clock import database_now
from usage.formatting import moment, money, usd
from usage.models import Price
from usage.pages.links import page_url

MAX_PRICES = 100
# The parts of a price.
NAMES = {
    "input_per_mtok_nanodollars": "Input",
    "cached_input_per_mtok_nanodollars": "Cached input",
    "output_per_mtok_nanodollars": "Output",
    "reasoning_per_mtok_nanodollars": "Reasoning",
    "cache_write_per_mtok_nanodollars": "Cache write",
    "cache_write_1h_per_mtok_nanodollars": "Cache write, 1 h",
}
assert tuple(NAMES) == tuple(field.name for field in fields(pricing.Price)), "each part has a name"
# The plot ends after now and after the last price's start, by this share of the time before.
_AIR = 0.08
# The end of Python's calendar: a price may start on its last day.
_NEVER = datetime.max.replace(tzinfo=UTC)
# The width of a date on a phone, in percent of the plot's width.
_LABEL_WIDTH = 32.0


@require_safe
def prices_page(request: HttpRequest) -> HttpResponse:
    """Show the timeline of the URL's model; without a model, redirect to the list of all prices."""
    if not request.user.has_perm("usage.view_price"):
        raise PermissionDenied
    model = request.GET.get("model", "").replace("\x00", "")
    if not model:
        return redirect("admin:usage_price_changelist")
    known = admin.site.get_model_admin(Price).get_queryset(request).filter(model=model)
    # One row more than is shown, with which the oldest shown price is compared.
    rows = list(known.order_by("-effective_from")[: MAX_PRICES + 1])[::-1]
    now = database_now()
    context = {
        "title": "Prices",
        "model": model,
        "is_served": ServedModel.objects.filter(pk=model).exists(),
        "entries": entries(rows, now)[:MAX_PRICES],
        "chart": draw_chart(rows, now),
        "hidden_count": max(known.count() - MAX_PRICES, 0),
    }
    return TemplateResponse(request, "chatapi/prices.html", admin.site.each_context(request) | context)


@require_POST
def withdraw(request: HttpRequest, price_id: int) -> HttpResponse:
    """Delete a price that has not begun; a price that has begun is part of the books."""
    if not request.user.has_perm("usage.delete_price"):
        raise PermissionDenied
    row = get_object_or_404(Price, pk=price_id)
    if prices.withdraw(price_id) is None:
        messages.error(request, "This price has begun, so it stays. Set a new one instead.")
    else:
        messages.success(request, f"The price from {moment(row.effective_from)} (UTC) is withdrawn.")
    return redirect(page_url("prices", {"model": row.model}))


# ---- the timeline


@dataclass(frozen=True, slots=True)
class Amount:
    """One part of a price, compared with the price before."""

    name: str
    usd: str
    before_usd: str
    """Empty if it was the same, or if there was no price before."""
    change: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One price: its time, and what it changed."""

    row: Price
    ends: datetime | None
    state: str
    """"past", "in effect" or "upcoming"."""
    amounts: Sequence[Amount]


def entries(rows: Sequence[Price], now: datetime) -> list[Entry]:
    """Return the timeline of one model's prices, newest first; `rows` are oldest first."""
    ends: list[datetime | None] = [*(row.effective_from for row in rows[1:]), None]
    befores: list[pricing.Price | None] = [None, *(row.value for row in rows)]
    made = [
        Entry(row, end, _state(row, end, now), _amounts(row.value, before))
        for row, end, before in zip(rows, ends, befores, strict=False)
    ]
    return made[::-1]


def percent(before: int, after: int) -> str:
    """Return the change of a price: "+33 %", "−2.5 %", or words."""
    if before == after:
        return "unchanged"
    if not before:
        return "was free"
    if not after:
        return "free now"
    change = 100 * (after - before) / before
    if abs(change) < 0.01:
        return "barely changed"
    return f"{change:+,.0f} %" if change > 900 else f"{change:+.3g} %".replace("-", "−")


def _state(row: Price, end: datetime | None, now: datetime) -> str:
    if row.effective_from > now:
        return "upcoming"
    return "in effect" if end is None or end > now else "past"


def _amounts(price: pricing.Price, before: pricing.Price | None) -> list[Amount]:
    return [
        _amount(field, price, before)
        for field in NAMES
        if getattr(price, field) is not None or (before and getattr(before, field) is not None)
    ]


def _amount(field: str, price: pricing.Price, before: pricing.Price | None) -> Amount:
    if before is None:
        return Amount(NAMES[field], written(price, field), "", "")
    change = percent(charged(before, field), charged(price, field))
    was, now = written(before, field), written(price, field)
    return Amount(NAMES[field], now, was if was != now else "", change)


def charged(price: pricing.Price, field: str) -> int:
    """Return the price of this part or, if it is None, that of its fallback."""
    amount: int | None = getattr(price, field)
    return charged(price, pricing.FALLBACKS[field]) if amount is None else amount


def written(price: pricing.Price | Price, field: str) -> str:
    """Return the price of this part as text, such as "$0.15" or "as output"."""
    amount: int | None = getattr(price, field)
    return f"as {NAMES[pricing.FALLBACKS[field]].lower()}" if amount is None else usd(amount)


# ---- the chart


@dataclass(frozen=True, slots=True)
class CurveSegment:
    """One straight part of a curve."""

    style: str
    x1: str
    x2: str
    y1: str
    y2: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside an axis."""

    at: str
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Chart:
    """The shapes and texts that the template draws."""

    lines: Sequence[CurveSegment]
    legend: Sequence[tuple[str, str]]
    """Each curve's colour and name."""
    heights: Sequence[Label]
    times: Sequence[Label]
    now: Label


class _Plot:
    """The plot's scales, in percent."""

    def __init__(self, rows: Sequence[Price], fields: Sequence[str], now: datetime) -> None:
        self.start = rows[0].effective_from
        last = max(now, rows[-1].effective_from)
        self.end = last + min(max((last - self.start) * _AIR, timedelta(seconds=1)), _NEVER - last)
        self.highest = max(charged(row.value, field) for row in rows for field in fields)

    def x(self, moment: datetime) -> float:
        return 100 * (moment - self.start) / (self.end - self.start)

    def y(self, nanodollars: int) -> float:
        # 6 % stay free above the highest line.
        return 100 - 94 * nanodollars / max(self.highest, 1)


def draw_chart(rows: Sequence[Price], now: datetime) -> Chart | None:
    """Return the chart of one model's prices, which are oldest first; None if the price never changed."""
    if len(rows) < 2:
        return None
    fields = [field for field in NAMES if any(getattr(row, field) is not None for row in rows)]
    plot = _Plot(rows, fields, now)
    # In reverse order, so that of two parts with the same price the more common one is on top.
    lines = [line for field in reversed(fields) for line in _curve(plot, rows, field, now)]
    legend = [(_colour(field), NAMES[field]) for field in fields]
    amounts = sorted({0, plot.highest // 2, plot.highest})
    heights = [Label(_percent(plot.y(amount)), money(amount)) for amount in amounts]
    now_x = max(plot.x(now), 0.0)
    # On the side with more room: beyond the plot are the labels of the heights.
    now_label = Label(_percent(now_x), "now", "start" if now_x < 50 else "end")
    return Chart(lines, legend, heights, _times(plot, rows), now_label)


def _curve(plot: _Plot, rows: Sequence[Price], field: str, now: datetime) -> Iterator[CurveSegment]:
    colour = _colour(field)
    for row, following in pairwise([*rows, None]):
        assert row is not None, "only the last one is None, which is never the first of a pair"
        y = plot.y(charged(row.value, field))
        end = following.effective_from if following else plot.end
        known_until = min(max(now, row.effective_from), end)
        yield _line(colour, (plot.x(row.effective_from), plot.x(known_until)), (y, y))
        yield _line(f"{colour} upcoming", (plot.x(known_until), plot.x(end)), (y, y))
        if following:
            style = colour if end <= now else f"{colour} upcoming"
            yield _line(style, (plot.x(end), plot.x(end)), (y, plot.y(charged(following.value, field))))


def _line(style: str, x: tuple[float, float], y: tuple[float, float]) -> CurveSegment:
    return CurveSegment(style, *map(_percent, x), *map(_percent, y))


def _times(plot: _Plot, rows: Sequence[Price]) -> list[Label]:
    """Return labels of the prices' starts, without those that would overlap."""
    form = "%Y-%m-%d" if plot.end - plot.start > timedelta(days=3) else "%m-%d %H:%M"
    labels, free_from = [], 0.0
    for row in rows:
        x = plot.x(row.effective_from)
        anchor, left = _anchored(x)
        if left >= free_from:
            labels.append(Label(_percent(x), f"{row.effective_from:{form}}", anchor))
            free_from = left + _LABEL_WIDTH
    return labels


def _anchored(x: float) -> tuple[str, float]:
    """Return the anchor of a label at x that keeps it within the plot, and its left edge."""
    if x < _LABEL_WIDTH / 2:
        return "start", x
    return ("end", x - _LABEL_WIDTH) if x > 100 - _LABEL_WIDTH / 2 else ("middle", x - _LABEL_WIDTH / 2)


def _colour(field: str) -> str:
    return f"colour-{list(NAMES).index(field)}"


def _percent(number: float) -> str:
    return f"{number:.3f}%"
