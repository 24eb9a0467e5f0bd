"""API keys: their list, one of them, and a new one with its limits and budget."""

from functools import partial
from typing import Any

from django import forms
from django.db import transaction
from django.forms import BoundField
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from accounts import access, keys
from accounts.models import APIKey, KeyScope, Project, RateLimit
from chatapi.console.offers import offers
from chatapi.console.tenancy import Console, newest_first, page, render
from chatapi.pages import key_panels, key_snippets
from chatapi.snippets import base_url
from chatapi.wire.dialects import DIALECTS
from usage.insights.keys import key_activity
from usage.models import BudgetLimit, Scope
from usage.pages.budget_lines import PERIODS
from usage.pages.forms import USDField
from usage.rollups import refused_requests

PAGE = 50


class NewKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A new key of one of the organization's projects, with limits of its own."""

    test_key = forms.BooleanField(
        required=False, label="Test key", help_text="Reaches only the sandbox engine, and is free."
    )
    scopes = forms.MultipleChoiceField(
        choices=[each for each in KeyScope.choices if each[0] not in (KeyScope.USAGE, KeyScope.MANAGEMENT)],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Leave empty to allow everything.",
    )
    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Leave empty to allow all models.",
    )
    default_dialect = forms.ChoiceField(
        label="Dialect",
        choices=[("", "the server's default"), *((name, name) for name in DIALECTS)],
        required=False,
        help_text="The form of the answers. The URL's prefix and the header X-ChatAPI-Dialect override it.",
    )
    requests_per_minute = forms.IntegerField(min_value=0, max_value=2**31 - 1, required=False)
    tokens_per_minute = forms.IntegerField(min_value=0, max_value=2**53, required=False)
    budget = USDField(label="Budget in USD", widget=forms.TextInput, required=False)
    period = forms.ChoiceField(label="Budget is for", choices=list(PERIODS.items()), required=False)

    class Meta:
        model = APIKey
        fields = ["project", "name", "scopes", "allowed_models", "default_dialect", "expires_at"]
        widgets = {"expires_at": forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")}

    field_order = ["project", "name", "test_key"]
    limits = ("requests_per_minute", "tokens_per_minute")

    def __init__(self, data: Any, console: Console) -> None:
        super().__init__(data, initial={"project": console.project, "name": ""})
        self.fields["expires_at"].label = f"Expires ({console.organization.time_zone})"
        project: Any = self.fields["project"]
        project.queryset = Project.objects.filter(pk__in=[row.pk for row in console.projects])
        project.label_from_instance = lambda row: row.name
        project.empty_label = None
        models: Any = self.fields["allowed_models"]
        models.choices = [(each.id, each.id) for each in offers(console)]
        own_limits = {"accounts.add_ratelimit": self.limits, "usage.add_budgetlimit": ("budget", "period")}
        for permission, names in own_limits.items():
            if not console.may(permission):
                for name in names:
                    del self.fields[name]

    @property
    def limit_fields(self) -> list[BoundField]:
        """Return the fields of limits that the person may set."""
        return [self[name] for name in (*self.limits, "budget", "period") if name in self.fields]

    def clean(self) -> dict[str, Any]:
        """Set the kind before the secret is made."""
        self.instance.is_test = self.cleaned_data.get("test_key", False)
        return self.cleaned_data

    def issue(self) -> str:
        """Save the key with its limits, all or nothing; return its secret."""
        data = self.cleaned_data
        with transaction.atomic():
            secret = keys.issue(self.instance)
            limits = {name: data[name] for name in self.limits if data.get(name) is not None}
            if limits:
                RateLimit.objects.create(api_key=self.instance, **limits)
            if data.get("budget") is not None:
                BudgetLimit.objects.create(
                    scope=Scope.API_KEY,
                    scope_id=self.instance.pk,
                    period=data["period"] or next(iter(PERIODS)),
                    limit_nanodollars=data["budget"],
                )
        return secret


@require_safe
@page("accounts.view_apikey")
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the keys, newest first, with their use of 30 days."""
    rows = _keys(console)
    if console.project:
        rows = rows.filter(project=console.project)
    project_id = console.project and console.project.pk
    found, links = newest_first(request, rows, PAGE, partial(console.url, "keys", project=project_id))
    now = timezone.now()
    activity = key_activity(found, now) if found else {}
    shown = [(row, keys.status(row, now), activity[row.pk]) for row in found]
    context = {
        "title": "API keys",
        "keys": shown,
        "new_url": console.url("new_key", project=project_id) if console.may("accounts.add_apikey") else "",
        **links,
    }
    return render(request, console, "keys.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.add_apikey")
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new key; make it, and show its secret once."""
    form = NewKeyForm(request.POST or None, console)
    if not form.is_valid():
        context: dict[str, Any] = {"title": "New API key", "form": form}
        context["may_add_project"] = console.may("accounts.add_project")
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
    }
    return render(request, console, "key_secret.html", context)


@require_safe
@page("accounts.view_apikey")
def key_page(request: HttpRequest, console: Console, key_id: int) -> HttpResponse:
    """Show one key: its rights, limits and budgets."""
    row, now = key_of(console, key_id), timezone.now()
    context = {
        "title": row.name,
        "key": row,
        "status": keys.status(row, now),
        "has_previous": row.has_previous(now),
        "last_refusal": refused_requests.of_key(row.pk, now).last_invalid,
        "rate_limits": list(key_panels.rate_limits(row)),
        "budgets": list(key_panels.budgets(row)),
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
    rows = APIKey.objects.select_related("project__organization")
    return access.belonging_to(console.organization.pk, rows)


def key_of(console: Console, key_id: int) -> APIKey:
    """Return one of the organization's keys; raises `Http404` for any other number."""
    row: APIKey | None = _keys(console).filter(pk=key_id).first()
    if row is None:
        raise Http404("There is no such key.")
    return row


def may_change(console: Console, row: APIKey) -> bool:
    """Return whether the person may rotate, disable and revoke the key."""
    if not console.may("accounts.change_apikey"):
        return False
    return not row.is_admin or access.may_change_admin_key(console.person, row)
