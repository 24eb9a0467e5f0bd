"""The page where a reader of an event looks next: in the console or, for one of the service, in the admin."""

from collections.abc import Callable, Mapping
from datetime import date, datetime
from zoneinfo import ZoneInfo

from django.urls import reverse
from django.utils.timezone import localdate

from usage.models import Event, EventKind, Scope


def path(event: Event) -> str:
    """Return the path of the page; empty for a kind that only a newer release knows."""
    find = _PATHS.get(event.kind)
    return find(event) if find else ""


def _of_console(event: Event, name: str, *args: object, **query: object) -> str:
    parameters = {key: value for key, value in query.items() if value}
    return reverse(f"console:{name}", args=[event.organization_id, *args], query=parameters or None)


def _budget(event: Event) -> str:
    scope, scope_id = event.data["scope"], event.data["scope_id"]
    if scope == Scope.API_KEY:
        return _of_console(event, "key", scope_id)
    return _of_console(event, "budgets", project=scope_id if scope == Scope.PROJECT else "")


def _local(event: Event, moment: datetime) -> date:
    zone = event.organization.time_zone if event.organization else "UTC"
    return localdate(moment, ZoneInfo(zone))


def _spend(event: Event) -> str:
    return _of_console(event, "overview", start=event.period, end=event.period, group="key")


def _failures(event: Event) -> str:
    since = _local(event, datetime.fromisoformat(event.data["since"]))
    return _of_console(event, "overview", start=since, end=_local(event, event.created_at), group="error")


def _model(event: Event) -> str:
    return _of_console(event, "usage", model=event.data["model"])


def _deployment(event: Event) -> str:
    return reverse("admin:chatapi_servedmodel_change", args=[event.data["model"]])


_PATHS: Mapping[str, Callable[[Event], str]] = {
    EventKind.BUDGET: _budget,
    EventKind.CREDIT: lambda event: _of_console(event, "credit"),
    EventKind.KEY: lambda event: _of_console(event, "key", event.data["key_id"]),
    EventKind.SPEND: _spend,
    EventKind.ALERT: lambda event: _of_console(event, "budgets", project=event.data["project_id"]),
    EventKind.FAILURES: _failures,
    EventKind.MODEL: _model,
    EventKind.MODEL_UP: _model,
    EventKind.DEPLOYMENT: _deployment,
    EventKind.DEPLOYMENT_UP: _deployment,
    EventKind.LEDGER: lambda _: reverse("admin:index"),
    EventKind.STATEMENT: lambda _: reverse("admin:statements"),
}
