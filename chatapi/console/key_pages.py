"""API keys: their list, one of them, and a new one."""

from functools import partial
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from accounts import access, keys
from accounts.models import APIKey
from chatapi.console.no_credit import NoCredit
from chatapi.console.search import KeySearch
from chatapi.console.tenancy import Console, page, render
from chatapi.console.tenant_key_forms import NewKeyForm
from chatapi.pages import key_panels, key_snippets
from chatapi.snippets import base_url
from usage.insights.keys import key_activity
from usage.pages import audit
from usage.pages.filters import first_mistake, newest_first
from usage.rollups import refused_requests

PAGE = 50


@require_safe
@page("accounts.view_apikey", keeps_to_projects=True)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the keys that match the search, newest first, with their use of 30 days."""
    project_id, search, now = console.project and console.project.pk, KeySearch(request.GET), timezone.now()
    context: dict[str, Any] = {
        "title": "API keys",
        "new_url": console.url("new_key", project=project_id) if console.may("accounts.add_apikey") else "",
        "clear_url": console.url("keys", project=project_id),
    }
    if not search.is_valid():
        return render(request, console, "keys.html", context | {"mistake": first_mistake(search)}, status=400)
    rows = search.found_in(_keys(console), now)
    if console.project:
        rows = rows.filter(project=console.project)
    url = partial(console.url, "keys", project=project_id, **search.query)
    found, links = newest_first(request, rows, PAGE, url)
    activity = key_activity(found, now) if found else {}
    context |= {
        "search": search,
        "keys": [(row, keys.status(row, now), activity[row.pk]) for row in found],
        "spend_url": console.url("overview", group="key", days=30, project=project_id),
        **links,
    }
    return render(request, console, "keys.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.add_apikey", keeps_to_projects=True)
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new key; make it, and show its secret once."""
    form = NewKeyForm(request.POST or None, console, is_test="test" in request.GET)
    if not form.is_valid():
        context: dict[str, Any] = {"title": "New API key", "form": form}
        context["may_add_project"] = console.may("accounts.add_project")
        context["no_credit"] = NoCredit.of(console)
        return render(request, console, "new_key.html", context)
    return secret_page(request, console, form.instance, form.issue(), "API key created")


def secret_page(request: HttpRequest, console: Console, row: APIKey, secret: str, title: str) -> HttpResponse:
    """Show a new secret, once, with code that uses it."""
    models = key_snippets.usable_models(row)
    context = {
        "title": title,
        "key": row,
        "secret": secret,
        "snippets": key_snippets.snippets(row, secret, base_url(request), models),
        "has_model": bool(models),
        "no_credit": None if row.is_test else NoCredit.of(console),
    }
    return render(request, console, "key_secret.html", context)


@require_safe
@page("accounts.view_apikey", keeps_to_projects=True)
def key_page(request: HttpRequest, console: Console, key_id: int) -> HttpResponse:
    """Show one key: its use, rights, limits and budgets."""
    rows = key_panels.with_maker(_keys(console)).select_related("service_account")
    row, now = _one_of(rows, key_id), timezone.now()
    console, is_of_project = console.at(row.project_id), console.limit is not None
    context = {
        "activity": key_activity([row], now)[row.pk],
        "title": row.name,
        "key": row,
        "made_by": key_panels.made_by(row, console.person, is_of_project=is_of_project),
        "history_url": console.url("audit", type=APIKey._meta.label_lower, object=row.pk)
        if console.may(audit.PERMISSION)
        else "",
        "status": keys.status(row, now),
        "has_previous": row.has_previous(now),
        "last_refusal": refused_requests.of_key(row.pk, now).last_invalid,
        "rate_limits": list(key_panels.rate_limits(row, is_of_project=is_of_project)),
        "budgets": list(key_panels.budgets(row, is_of_project=is_of_project)),
        "may_change": row.revoked_at is None and may_change(console, row),
        "usage_url": console.url("overview", key=row.pk),
        "requests_url": console.url("requests", key=row.pk),
        "new_budget_url": console.url("new_budget", key=row.pk)
        if console.may("usage.add_budgetlimit")
        else "",
        "new_rate_limit_url": console.url("new_rate_limit", key=row.pk)
        if console.may("accounts.add_ratelimit")
        else "",
    }
    return render(request, console, "key.html", context)


def _keys(console: Console) -> Any:
    return console.rows(APIKey.objects.select_related("project__organization"))


def key_of(console: Console, key_id: int) -> APIKey:
    """Return one of the keys that the person sees; raises `Http404` for any other number."""
    return _one_of(_keys(console), key_id)


def _one_of(rows: Any, key_id: int) -> APIKey:
    row: APIKey | None = rows.filter(pk=key_id).first()
    if row is None:
        raise Http404("There is no such key.")
    return row


def may_change(console: Console, row: APIKey) -> bool:
    """Return whether the person may change, rotate, disable and revoke the key."""
    if not console.may("accounts.change_apikey"):
        return False
    return not row.is_admin or access.may_change_admin_key(console.person, row)
