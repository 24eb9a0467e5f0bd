"""Events as people read them: a title, a sentence, and what each kind means."""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal

from django.template.defaultfilters import pluralize

from usage.books.outbox import SOFT_LIMIT
from usage.budget_words import words
from usage.formatting import money
from usage.models import Event, EventKind, Period
from usage.models.budget_keys import EVER, BudgetKey, LimitKey
from usage.pricing import NANODOLLARS

MEANINGS: Mapping[str, str] = {
    EventKind.BUDGET: (
        "A budget has spent 50, 80 or 100 % of its limit, or has reached its warning. Each of these is "
        "reported once in each day, week or month or in total, as the limit counts. Those that are reached "
        "at once are one mail."
    ),
    EventKind.CREDIT: (
        "The prepaid balance fell below its threshold, which is a tenth of the last grant unless another "
        "one is set. This is reported once after each grant or refund."
    ),
    EventKind.KEY: (
        "An API key expires within 7 days. This is reported once more within its last day. Keys that are "
        "made for less are left out."
    ),
    EventKind.SPEND: (
        "A day has cost at least $5 and more than twice the second highest of the 14 days before, 7 of which "
        "or more had spend. This is reported once a day."
    ),
    EventKind.ALERT: (
        "An organization or a project has spent the amount of a spend alert in this month. Each alert is "
        "reported once a month, to the members whom it names."
    ),
    EventKind.FAILURES: (
        "Since the start of the hour before, 10 or more requests of live keys failed, and a fifth or more of "
        "those that ended. This is reported once a day."
    ),
    EventKind.MODEL: (
        "No deployment of a model that your live keys called in the last day answers. Requests that a "
        "fallback answered do not count as calls. This is reported when it begins, and once a day while it "
        "lasts."
    ),
    EventKind.MODEL_UP: "A model that was down has answered a request.",
    EventKind.DEPLOYMENT: (
        "A deployment has failed for about a minute, in five cool-downs in a row. This is reported when it "
        "begins, and once a day while it lasts."
    ),
    EventKind.DEPLOYMENT_UP: "A deployment that was down has answered a request.",
    EventKind.LEDGER: "A check of the books found differences. This is reported once a day.",
    EventKind.STATEMENT: (
        "An organization's monthly statement can't be issued. This is reported once for each organization "
        "and month."
    ),
    EventKind.TEST: "Somebody sent it to try an endpoint.",
}


def _budget(event: Event) -> str:
    data = event.data
    amounts = f"{_amount(data['spent_usd'])} of {_amount(data['limit_usd'])}"
    start = date.fromisoformat(data["period_start"] or str(EVER))
    key = LimitKey.of_owner(data["scope"], int(data["scope_id"]), data).budget(start)
    spent = f"{data['name']} has spent {amounts} {words(key).dates}"
    if data["threshold"] == SOFT_LIMIT:
        return f"{spent}, and has reached its warning."
    share = f"{data['threshold']} % of its {'warning' if data['is_soft'] else 'limit'}"
    # Events of older releases do not have what was reached with them.
    warned = ", and has reached its warning" if SOFT_LIMIT in data.get("reached", ()) else ""
    refused = f" {_until_raised(key)}" if data["threshold"] == "100" and not data["is_soft"] else ""
    return f"{spent}: {share}{warned}.{refused}"


def _until_raised(budget: BudgetKey) -> str:
    if end := budget.resets_on:
        return f"Its requests are refused until {end.day} {end:%B %Y}, unless the limit is raised."
    return "Its requests are refused until the limit is raised."


def _credit(event: Event) -> str:
    data = event.data
    balance, threshold = _amount(data["balance_usd"]), _amount(data["threshold_usd"])
    if balance.startswith("-"):
        return f"The prepaid balance is {balance}, a debt. Its threshold is {threshold}."
    return f"{balance} of credit is left, less than {threshold}."


def _amount(usd: str) -> str:
    # A debt and a large sum are no prices, so `from_usd` would refuse them.
    return money(int(Decimal(usd) * NANODOLLARS))


def _key(event: Event) -> str:
    data = event.data
    left = "a day" if data["days"] == 1 else f"{data['days']} days"
    key = f"{data['name']} ({data['redacted_value']})"
    return f"The API key {key} expires in less than {left}: at {_minute(data['expires_at'])}."


def _spend(event: Event) -> str:
    spent, usual = _amount(event.data["spent_usd"]), _amount(event.data["usual_usd"])
    day = date.fromisoformat(event.period)
    cost = f"{day.day} {day:%B %Y} has cost {spent} so far."
    return f"{cost} The second highest of the 14 days before cost {usual}."


def _alert(event: Event) -> str:
    data = event.data
    owner = "The organization" if data["project_id"] is None else f"The project {data['project']}"
    key = BudgetKey("organization", 0, Period.MONTH.value, date.fromisoformat(data["period_start"]))
    spent, threshold = _amount(data["spent_usd"]), _amount(data["threshold_usd"])
    return f"{owner} has spent {spent} {words(key).dates}. Its spend alert is at {threshold}."


def _model(event: Event) -> str:
    return f"The model {event.data['model']}"


def _deployment(event: Event) -> str:
    return f"The deployment {event.data['deployment']} of {event.data['model']}"


def _down(name: str, event: Event) -> str:
    # Events of older releases have no beginning.
    since = event.data.get("since")
    return f"{name} has not answered since {_minute(since)}." if since else f"{name} does not answer."


def _up(name: str, event: Event) -> str:
    return f"{name} answers again. It was down since {_minute(event.data['since'])}."


def _failures(event: Event) -> str:
    data = event.data
    return f"{data['failed']:,} of {data['requests']:,} requests failed since {_minute(data['since'])}."


def _ledger(event: Event) -> str:
    number = event.data["differences"]
    return (
        f"The books have {number:,} difference{pluralize(number)}, which manage.py verifyledger lists. "
        f"The first one: {event.data['first_difference']}"
    )


def _minute(time: str) -> str:
    return f"{time[:10]} {time[11:16]} UTC"


def _statement(event: Event) -> str:
    data = event.data
    return f"The statement {data['month']} of {data['organization']} can't be issued: {data['reason']}."


_SENTENCES: Mapping[str, Callable[[Event], str]] = {
    EventKind.BUDGET: _budget,
    EventKind.CREDIT: _credit,
    EventKind.KEY: _key,
    EventKind.SPEND: _spend,
    EventKind.ALERT: _alert,
    EventKind.FAILURES: _failures,
    EventKind.MODEL: lambda event: _down(_model(event), event),
    EventKind.MODEL_UP: lambda event: _up(_model(event), event),
    EventKind.DEPLOYMENT: lambda event: _down(_deployment(event), event),
    EventKind.DEPLOYMENT_UP: lambda event: _up(_deployment(event), event),
    EventKind.LEDGER: _ledger,
    EventKind.STATEMENT: _statement,
    EventKind.TEST: lambda _: "This is a test.",
}


def sentence(event: Event) -> str:
    """Return what has happened, in one sentence; of a kind that only a newer release knows, its name."""
    written = _SENTENCES.get(event.kind)
    return written(event) if written else f"{event.kind}."


def title(event: Event, place: str) -> str:
    """Return the subject of a mail: the kind of the event, what it is about, and the place if that does not
    name it.
    """
    kind, data = event.get_kind_display(), event.data
    match event.kind:
        case EventKind.BUDGET if data["threshold"] == SOFT_LIMIT:
            return f"Budget warning reached: {data['name']}"
        case EventKind.BUDGET:
            return f"{data['threshold']} % of a budget is spent: {data['name']}"
        case EventKind.KEY:
            return f"{kind}: {data['name']}"
        case EventKind.MODEL | EventKind.MODEL_UP:
            place = f"{data['model']}, {place}"
        case EventKind.DEPLOYMENT | EventKind.DEPLOYMENT_UP:
            place = f"{data['deployment']} of {data['model']}, {place}"
        case EventKind.STATEMENT:
            place = f"{data['month']} of {data['organization']}, {place}"
    return f"{kind}: {place}"
