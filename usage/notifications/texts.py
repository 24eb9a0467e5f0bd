"""Events as people read them: a title, a sentence, and what each kind means."""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from django.template.defaultfilters import pluralize

from usage.books.outbox import SOFT_LIMIT
from usage.budget_words import words
from usage.formatting import money
from usage.models import Event, EventKind, Period
from usage.models.budget_keys import EVER, BudgetKey, LimitKey
from usage.pricing import NANODOLLARS

Data = Mapping[str, Any]

MEANINGS: Mapping[str, str] = {
    EventKind.BUDGET: (
        "A budget has spent 50, 80 or 100 % of its limit, or has reached its warning. Once in each day or "
        "month, or in total, as the limit. One mail says what was reached at once."
    ),
    EventKind.CREDIT: (
        "The prepaid balance fell below its threshold, which is a tenth of the last grant unless another "
        "one is set. Once after each grant or refund."
    ),
    EventKind.KEY: "An API key expires in 7 days, and in 1 day. Keys that are made for less are left out.",
    EventKind.SPEND: (
        "A day cost at least $5 and more than twice the second highest of the 14 days before, 7 of which or"
        " more had spend. Once a day."
    ),
    EventKind.ALERT: (
        "An organization or a project has spent the amount of a spend alert in this month. Once a month for "
        "each alert; the mail goes to the members whom it names."
    ),
    EventKind.FAILURES: (
        "Since the start of the hour before, 10 or more requests of live keys failed, and a fifth or more of "
        "those that ended. Once a day."
    ),
    EventKind.MODEL: (
        "No deployment of a model that your live keys called in the last day answers. Requests that a "
        "fallback answered do not count as calls. When that begins, and once a day while it lasts."
    ),
    EventKind.MODEL_UP: "A model that was down has answered a request.",
    EventKind.DEPLOYMENT: (
        "A deployment has failed for about a minute, in five cool-downs in a row. When that begins, and once "
        "a day while it lasts."
    ),
    EventKind.DEPLOYMENT_UP: "A deployment that was down has answered a request.",
    EventKind.LEDGER: "A check of the books found differences. Once a day.",
    EventKind.STATEMENT: (
        "An organization's monthly statement can't be issued. Once for each organization and month."
    ),
    EventKind.TEST: "Somebody sent it to try an endpoint.",
}


def _budget(data: Data) -> str:
    amounts = f"{_amount(data['spent_usd'])} of {_amount(data['limit_usd'])}"
    start = date.fromisoformat(data["period_start"] or str(EVER))
    key = LimitKey.of_owner(data["scope"], int(data["scope_id"]), data).budget(start)
    spent = f"{data['name']} has spent {amounts} {words(key).dates}"
    if data["threshold"] == SOFT_LIMIT:
        return f"{spent}, and has reached its warning."
    share = f"{data['threshold']} % of its {'warning' if data['is_soft'] else 'limit'}"
    # Events of older releases do not have what was reached with them.
    warned = ", and has reached its warning" if SOFT_LIMIT in data.get("reached", ()) else ""
    return f"{spent}: {share}{warned}."


def _amount(usd: str) -> str:
    # A debt and a large sum are no prices, so `from_usd` would refuse them.
    return money(int(Decimal(usd) * NANODOLLARS))


def _key(data: Data) -> str:
    left = "a day" if data["days"] == 1 else f"{data['days']} days"
    key = f"{data['name']} ({data['redacted_value']})"
    return f"The API key {key} expires in less than {left}: at {_minute(data['expires_at'])}."


def _spend(data: Data) -> str:
    spent, usual = _amount(data["spent_usd"]), _amount(data["usual_usd"])
    return f"This day has cost {spent} so far. The second highest of the 14 days before cost {usual}."


def _alert(data: Data) -> str:
    owner = "The organization" if data["project_id"] is None else f"The project {data['project']}"
    key = BudgetKey("organization", 0, Period.MONTH.value, date.fromisoformat(data["period_start"]))
    spent, threshold = _amount(data["spent_usd"]), _amount(data["threshold_usd"])
    return f"{owner} has spent {spent} {words(key).dates}. Its spend alert is at {threshold}."


def _model(data: Data) -> str:
    return f"The model {data['model']}"


def _deployment(data: Data) -> str:
    return f"The deployment {data['deployment']} of {data['model']}"


def _down(name: str, data: Data) -> str:
    # Events of older releases have no beginning.
    since = data.get("since")
    return f"{name} has not answered since {_minute(since)}." if since else f"{name} does not answer."


def _up(name: str, data: Data) -> str:
    return f"{name} answers again. It was down since {_minute(data['since'])}."


def _minute(time: str) -> str:
    return f"{time[:10]} {time[11:16]} UTC"


_SENTENCES: Mapping[str, Callable[[Data], str]] = {
    EventKind.BUDGET: _budget,
    EventKind.CREDIT: lambda data: (
        f"{_amount(data['balance_usd'])} of credit is left, less than {_amount(data['threshold_usd'])}."
    ),
    EventKind.KEY: _key,
    EventKind.SPEND: _spend,
    EventKind.ALERT: _alert,
    EventKind.FAILURES: lambda data: (
        f"{data['failed']} of {data['requests']} requests failed since {_minute(data['since'])}."
    ),
    EventKind.MODEL: lambda data: _down(_model(data), data),
    EventKind.MODEL_UP: lambda data: _up(_model(data), data),
    EventKind.DEPLOYMENT: lambda data: _down(_deployment(data), data),
    EventKind.DEPLOYMENT_UP: lambda data: _up(_deployment(data), data),
    EventKind.LEDGER: lambda data: (
        f"The books have {data['differences']} difference{pluralize(data['differences'])}; run verifyledger. "
        f"{data['first_difference']}"
    ),
    EventKind.STATEMENT: lambda data: (
        f"The statement {data['month']} of {data['organization']} can't be issued: {data['reason']}."
    ),
    EventKind.TEST: lambda _: "This is a test.",
}


def sentence(event: Event) -> str:
    """Return what has happened, in one sentence; of a kind that only a newer release knows, its name."""
    written = _SENTENCES.get(event.kind)
    return written(event.data) if written else f"{event.kind}."
