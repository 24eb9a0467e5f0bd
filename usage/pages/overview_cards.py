"""The Overview's numbers, each with its change against the period before and the URL of its rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from usage import insights
from usage.formatting import Change, change, count, duration, money, share, usd
from usage.insights import GroupBy, OverviewSums, Totals
from usage.models import Kind
from usage.pages.filters import words
from usage.pages.overview_form import OverviewForm
from usage.pages.row_links import entries_url, errors_url, group_url, rows_url

# Lines of a table of top spenders; many if the chart has the same groups.
_FEW, _MANY = 5, 20


@dataclass(frozen=True, slots=True)
class CardLine:
    """A part of a card's number."""

    name: str
    value: str
    url: str
    is_quiet: bool = False
    """Whether it is grey, because there is nothing to look at."""
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One number."""

    title: str
    value: str
    exact: str
    url: str
    change: Change | None
    more_is: str = ""
    """"bad" if a rise is bad news."""
    lines: Sequence[CardLine] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """Sums, and the sums of the period before, or None if there is nothing to compare with."""

    now: Totals
    before: Totals | None

    def change(self, of: Callable[[Totals], float]) -> Change | None:
        """Return the change of one of the sums."""
        return change(of(self.now), of(self.before) if self.before else None)


@dataclass(frozen=True, slots=True)
class Spender:
    """A line in a table of top spenders; `share` is of all spending, in percent."""

    label: str
    url: str
    totals: Totals
    share: str


def cards(form: OverviewForm, sums: OverviewSums) -> list[Card]:
    """Return spend, requests, tokens and, unless they are one end user's, errors and speed."""
    url, now, compared = rows_url(form), sums.now, Compared(sums.compared, sums.before)
    has_little = form.filters.has_days_of_end_user
    over = money(sums.overage.nanodollars)
    beyond = CardLine(
        "Over the reserved amount", over, entries_url(form, Kind.OVERAGE), not sums.overage.count
    )
    spend = Card(
        "Spend",
        money(now.amount_nanodollars),
        usd(now.amount_nanodollars),
        url,
        compared.change(lambda sums: sums.amount_nanodollars),
        lines=[] if has_little or form.is_of_requests else [beyond],
    )
    tokens = Card(
        "Tokens",
        count(now.total_tokens),
        f"{now.total_tokens:,}",
        url,
        compared.change(lambda sums: sums.total_tokens),
        lines=[
            CardLine("uncached input", count(now.uncached_tokens), url),
            CardLine("cached input", count(now.cached_tokens), url),
            CardLine("cache write", count(now.cache_write_tokens), url),
            CardLine("output", count(now.completion_tokens), url),
            CardLine("of it reasoning", count(now.reasoning_tokens), url),
        ],
    )
    requests = Card(
        "Requests", count(now.requests), f"{now.requests:,}", url, compared.change(lambda sums: sums.requests)
    )
    usage = [spend, requests, tokens]
    return usage if has_little else [*usage, _errors(form, sums, compared), _speed(form, sums)]


def spenders_of(form: OverviewForm) -> list[tuple[str, GroupBy]]:
    """Return the titles and groups of the tables of top spenders."""
    tables: list[tuple[str, GroupBy]] = [("Top models", "model")]
    if form.group_by == "error":
        tables = [("Errors", "error")]
    elif form.group_by == "metadata":
        tables = [(f"By {form.shown_key}", "metadata")]
    elif form.is_of_requests or form.has_partial_groups:
        tables = [(f"Top {words(form.group_by)}s", form.group_by)]
    elif form.filters.end_user is None:
        is_about_one = form.filters.organization_id is not None
        owners: tuple[str, GroupBy] = (
            ("Top projects", "project") if is_about_one else ("Top organizations", "organization")
        )
        tables = [owners, ("Top keys", "key"), *tables]
        if form.has_utc_days and form.counts_end_users:
            tables[0] = ("Top end users", "end_user")
    return tables


def spenders(form: OverviewForm, sums: OverviewSums, group: GroupBy) -> list[Spender]:
    """Return the groups that spent most, and what the others spent together."""
    all_of, rows = sums.now, sums.tops[group][: _MANY if group == form.group_by else _FEW]
    lines = [(form.label(group, row.label), group_url(form, group, row.group_id), row.totals) for row in rows]
    rest = all_of - sum((row.totals for row in rows), Totals())
    # Days of end users are full UTC days: they may have more than a part of a day that is compared.
    if group != "error" and rows and rest.requests > 0 and rest.amount_nanodollars >= 0:
        lines.append(("others", form.groups_url() if group == form.group_by else "", rest))
    whole = max(all_of.amount_nanodollars, 1)
    return [
        Spender(label, url, part, f"{max(100 * part.amount_nanodollars / whole, 0):.2f}%")
        for label, url, part in lines
    ]


def _errors(form: OverviewForm, sums: OverviewSums, compared: Compared) -> Card:
    """Return the share of failed requests, with a line for each outcome."""
    now = sums.now
    lines = [
        CardLine(words(outcome), count(of_outcome.requests), rows_url(form, outcome=outcome))
        for outcome, of_outcome in insights.by_amount(sums.outcomes)
        if outcome in insights.FAILED
    ]
    return Card(
        "Error rate",
        share(now.failed_requests, now.requests),
        f"{now.failed_requests:,} of {now.requests:,} requests",
        errors_url(form),
        compared.change(lambda sums: sums.error_rate),
        "bad",
        lines,
    )


def _speed(form: OverviewForm, sums: OverviewSums) -> Card:
    now, compared, before = sums.first_token, sums.first_token_compared, sums.first_token_before
    title, url = "First token, p50", rows_url(form)
    if now is None:
        return Card(title, "–", "No request has begun to answer.", url, None)
    p50_change = p95_change = None
    if compared and before:
        p50_change, p95_change = change(compared.p50, before.p50), change(compared.p95, before.p95)
    return Card(
        title,
        duration(now.p50),
        f"From claim to first token, of {now.sample_size:,} requests, to within 5 %.",
        url,
        p50_change,
        "bad",
        [
            CardLine("p95", duration(now.p95), url, change=p95_change),
            CardLine("measured", f"{now.sample_size:,}", url),
        ],
    )
