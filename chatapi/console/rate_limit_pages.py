"""Rate limits of the organization, its projects and keys, with their current use."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from redis.exceptions import RedisError

from accounts import access
from accounts.limits import Limit
from accounts.models import APIKey, RateLimit
from accounts.pages.admin_mixins import ConstrainedForm, OwnChangesForm
from accounts.rate_limits import RUNNING_LEASE_MS, RateLimits
from accounts.redis_urls import shared_url
from chatapi.console.budget_forms import OwnerForm, key_of
from chatapi.console.offers import model_names
from chatapi.console.tenancy import Console, Link, page, render
from chatapi.redis_client import connect
from usage.pages.filters import newest_first
from usage.pages.gauges import fullness

log = logging.getLogger(__name__)

PAGE = 50
_TITLES = {name: number.title for name, number in RateLimit.NUMBERS.items()}


class RateLimitForm(OwnChangesForm, OwnerForm, ConstrainedForm):
    """The numbers of a limit of a project or key; its owner and model can't be changed later."""

    model = forms.ChoiceField(required=False, help_text="All models share one limit.")

    class Meta:
        model = RateLimit
        fields = ["project", "each_end_user", "model", *RateLimit.NUMBERS]
        labels = _TITLES

    field_order = ["project", "each_end_user", "model"]

    def __init__(self, data: Any, console: Console, key: APIKey | None, row: RateLimit | None) -> None:
        super().__init__(data, console, key, instance=row or RateLimit(api_key=key))
        if row is not None:
            for name in {"project", "each_end_user", "model"} & self.fields.keys():
                del self.fields[name]
            return
        field: Any = self.fields["model"]
        field.choices = [("", "All models"), *((name, name) for name in model_names(console))]

    def clean(self) -> dict[str, Any]:
        """Refuse a limit without a number, which would limit nothing."""
        data = super().clean()
        numbers = data | self.kept()
        if all(numbers.get(name, "unread") is None for name in RateLimit.NUMBERS):
            raise ValidationError("Enter at least one number. 0 blocks everything.")
        return data


@dataclass(frozen=True, slots=True)
class Number:
    """One of a limit's numbers, and how much of it is used; None if that is unknown."""

    title: str
    most: int
    used: int | None

    @property
    def share(self) -> str:
        """Return the length of its bar in percent."""
        return f"{min(100 * (self.used or 0) / self.most, 100):.2f}%" if self.most else "100%"

    @property
    def mood(self) -> str:
        return fullness(self.used or 0, self.most).mood


@dataclass(frozen=True, slots=True)
class RateLimitLine:
    """A row of the list."""

    row: RateLimit
    name: str
    kind: str
    numbers: list[Number]
    may_change: bool


@require_safe
@page("accounts.view_ratelimit", keeps_to_projects=True)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the limits, newest first, with their use."""
    rows = _rows(console)
    project_id = console.project and console.project.pk
    if project_id:
        rows = access.in_projects([project_id], rows)
    found, links = newest_first(request, rows, PAGE, partial(console.url, "rate_limits", project=project_id))
    used = _used([limit for row in found if not row.each_end_user for limit in row.limits])
    context = {
        "title": "Rate limits",
        "lines": [_line(console, row, None if row.each_end_user else used) for row in found],
        "is_use_known": used is not None,
        "may_add": bool(console.projects) and console.may("accounts.add_ratelimit"),
        "new_url": console.url("new_rate_limit", project=project_id),
        **links,
    }
    return render(request, console, "rate_limits.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.add_ratelimit")
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new limit, of a project or of the key that the URL names; save it."""
    key = key_of(console, request.GET.get("key", ""))
    form = RateLimitForm(request.POST or None, console, key, None)
    if form.is_valid():
        form.save()
        messages.success(request, "The rate limit is set. It holds within a second.")
        return redirect(console.url("rate_limits"))
    context = {
        "title": f"New rate limit of the key {key.name}" if key else "New rate limit",
        "form": form,
        "submit": "Set the rate limit",
        "back": console.url("rate_limits"),
        "parent": _parent(console),
        "has_no_project": not key and not console.projects,
        "intro": "Leave a number empty for no limit. 0 blocks everything.",
    }
    return render(request, console, "limit_form.html", context, 400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_ratelimit")
def change_page(request: HttpRequest, console: Console, limit_id: int) -> HttpResponse:
    """Show the numbers of a limit; change them."""
    row = _changeable(console, limit_id)
    line = _line(console, row, None)
    form = RateLimitForm(request.POST or None, console, row.api_key, row)
    if form.is_valid():
        form.save_changes()
        messages.success(request, "The rate limit is changed. It holds within a second.")
        return redirect(console.url("rate_limits"))
    context = {
        "title": f"Rate limit of {line.name}",
        "form": form,
        "submit": "Save",
        "back": console.url("rate_limits"),
        "parent": _parent(console),
        "intro": f"For {row.model or 'all models together'}. Leave a number empty for no limit. 0 blocks "
        "everything.",
        "remove_url": console.url("remove_rate_limit", row.pk),
    }
    return render(request, console, "limit_form.html", context, 400 if form.errors else 200)


def _parent(console: Console) -> Link:
    # The menu has no link to this list, which is a tab beside the budgets.
    return Link("Rate limits", console.url("rate_limits"), True)


@require_POST
@page("accounts.delete_ratelimit")
def remove(request: HttpRequest, console: Console, limit_id: int) -> HttpResponse:
    row = _changeable(console, limit_id)
    name = _line(console, row, None).name
    row.delete()
    messages.success(request, f"The rate limit of {name} is removed.")
    return redirect(console.url("rate_limits"))


def _rows(console: Console) -> Any:
    owners = ("organization", "project__organization", "api_key__project", "end_user__project__organization")
    return console.rows(RateLimit.objects.select_related(*owners))


def _changeable(console: Console, limit_id: int) -> RateLimit:
    """Return the limit; raises `PermissionDenied` for one that the person may not change."""
    row: RateLimit | None = _rows(console).filter(pk=limit_id).first()
    if row is None:
        raise Http404("There is no such rate limit.")
    if not _may_change(console, row):
        raise PermissionDenied
    return row


def _may_change(console: Console, row: RateLimit) -> bool:
    is_theirs = row.organization_id is None or access.is_operator(console.person)
    return is_theirs and console.may("accounts.change_ratelimit")


def _line(console: Console, row: RateLimit, used: Mapping[Limit, int] | None) -> RateLimitLine:
    key = row.api_key
    name = f"{key.project.name} / {key.name}" if key else str(row.owner)
    set_numbers = [each for each in RateLimit.NUMBERS if getattr(row, each) is not None]
    numbers = [
        Number(_TITLES[each], getattr(row, each), (used or {}).get(limit))
        for each, limit in zip(set_numbers, row.limits, strict=True)
    ]
    kind = row.scope.replace("_", " ")
    return RateLimitLine(
        row,
        name.removeprefix(f"{console.organization} / "),
        f"each end user of the {kind}" if row.each_end_user else kind,
        numbers,
        _may_change(console, row),
    )


def _used(limits: Sequence[Limit]) -> Mapping[Limit, int] | None:
    """Return how much of each limit is used; None if Redis fails, because the page works without the use."""
    if not limits:
        return {}
    try:
        return asyncio.run(_ask(limits))  # a view runs in a thread without an event loop
    except RedisError as error:
        log.warning("could not read the use of rate limits: %r", error)
        return None


async def _ask(limits: Sequence[Limit]) -> Mapping[Limit, int]:
    async with connect(shared_url(), max_connections=1) as redis:
        return await RateLimits(redis, settings.REDIS_KEY_PREFIX, lease_ms=RUNNING_LEASE_MS).used(limits)
