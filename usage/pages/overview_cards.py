"""The Overview's numbers: each with what it was in the period before, and the address of the rows behind it."""

from collections.abc import Sequence
from dataclasses import dataclass

from usage import insights
from usage.formatting import usd
from usage.insights import GroupBy, Totals
from usage.models import Kind
from usage.pages import figures
from usage.pages.figures import Change
from usage.pages.overview_question import Question
from usage.pages.page_query import words


@dataclass(frozen=True, slots=True)
class Line:
    """A part of a card's number."""

    name: str
    value: str
    url: str
    is_quiet: bool = False
    """Grey: all is well."""
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
    """"bad" where a rise is no good news."""
    lines: Sequence[Line] = ()


@dataclass(frozen=True, slots=True)
class Spender:
    """One line of a table of who spends most; the share is of all spending, in percent."""

    label: str
    url: str
    totals: Totals
    share: str


def cards(question: Question, now: Totals, before: Totals) -> list[Card]:
    """Spend, requests, tokens, errors and time to first token."""
    url = question.rows_url()
    requests = figures.change(now.requests, before.requests)
    return [
        _spend(question, now, before),
        Card("Requests", figures.count(now.requests), f"{now.requests:,}", url, requests),
        _tokens(question, now, before),
        _errors(question, now, before),
        _speed(question),
    ]


def spenders(question: Question, all_of: Totals) -> list[tuple[str, list[Spender]]]:
    """Who spends most: the tables' titles and lines."""
    is_about_one = question.filters.organization_id is not None
    whole: tuple[str, GroupBy] = (
        ("Top projects", "project") if is_about_one else ("Top organizations", "organization")
    )
    tables: tuple[tuple[str, GroupBy], ...] = (whole, ("Top keys", "key"), ("Top models", "model"))
    return [(title, _spenders(question, group, all_of)) for title, group in tables]


def _spend(question: Question, now: Totals, before: Totals) -> Card:
    """What was charged; what of it no hold had covered."""
    beyond = insights.overage(question.over, question.filters)
    lines = [
        Line(
            "beyond holds",
            figures.money(beyond.nanodollars),
            question.entries_url(Kind.OVERAGE),
            is_quiet=not beyond.count,
        )
    ]
    change = figures.change(now.amount_nanodollars, before.amount_nanodollars)
    amount = now.amount_nanodollars
    return Card("Spend", figures.money(amount), usd(amount), question.rows_url(), change, lines=lines)


def _tokens(question: Question, now: Totals, before: Totals) -> Card:
    url = question.rows_url()
    lines = [
        Line("input", figures.count(now.prompt_tokens), url),
        Line("cached", figures.count(now.cached_tokens), url),
        Line("output", figures.count(now.completion_tokens), url),
        Line("reasoning", figures.count(now.reasoning_tokens), url),
    ]
    change = figures.change(now.total_tokens, before.total_tokens)
    return Card("Tokens", figures.count(now.total_tokens), f"{now.total_tokens:,}", url, change, lines=lines)


def _errors(question: Question, now: Totals, before: Totals) -> Card:
    """The failed requests' share; its parts lead to the rows, one outcome each."""
    outcomes = insights.top(question.over, "outcome", question.filters, 10)
    failed = [row for row in outcomes if row.group_id in insights.FAILED]
    lines = [
        Line(words(row.group_id), figures.count(row.totals.requests), question.rows_url(outcome=row.group_id))
        for row in failed
    ]
    exact = f"{now.failed_requests:,} of {now.requests:,} requests"
    change = figures.change(now.error_rate, before.error_rate)
    return Card(
        "Error rate",
        figures.share(now.failed_requests, now.requests),
        exact,
        question.errors_url,
        change,
        "bad",
        lines,
    )


def _speed(question: Question) -> Card:
    now = insights.first_token_ms(question.over, question.filters)
    before = insights.first_token_ms(question.over.before, question.filters)
    title, url = "First token, p50", question.rows_url()
    if now is None:
        return Card(title, "–", "No request has begun to answer.", url, None)
    slowest = figures.change(now.p95, before.p95 if before else None)
    lines = [
        Line("p95", figures.duration(now.p95), url, change=slowest),
        Line("measured", f"{now.sample_size:,}", url),
    ]
    change = figures.change(now.p50, before.p50 if before else None)
    return Card(
        title,
        figures.duration(now.p50),
        f"From claim to first token, of {now.sample_size:,} requests, to within 5 %.",
        url,
        change,
        "bad",
        lines,
    )


def _spenders(question: Question, group: GroupBy, all_of: Totals) -> list[Spender]:
    whole = max(all_of.amount_nanodollars, 1)
    return [
        Spender(
            row.label,
            question.rows_url(**{group: row.group_id}),
            row.totals,
            f"{100 * row.totals.amount_nanodollars / whole:.2f}%",
        )
        for row in insights.top(question.over, group, question.filters, 5)
    ]
