"""The paths of all pages, from the URL configuration, with rows of the busiest organization; and the query
strings with which some pages cost more. Runs inside Django.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from allauth.mfa.models import Authenticator
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from accounts import groups, own_roles
from accounts.models import APIKey, Certificate, Member, OwnRole, Project, RateLimit, Role
from accounts.models import Group as MemberGroup
from accounts.sign_in.models import EmailDomain, IdentityProvider
from chatapi import identity, response_store
from chatapi.models import Deployment, ServedModel, StoredResponse
from chatapi.notifications import webhooks
from chatapi.notifications.models import WebhookEndpoint
from chatapi.response_store import Content
from usage.books import credit, outbox
from usage.database.clock import database_now
from usage.models import BudgetLimit, EventKind, Generation, LedgerEntry, Price, SpendAlert
from usage.payment.models import Payment
from usage.rollups import refused_requests
from usage.rollups.refused_requests import Refusal

MODEL = "seed-large"
EMPTY_RESPONSE = Content(b'{"items":[],"context":{}}', [])
SPENT = {"spent_usd": "8.1", "usual_usd": "4"}
BY_ERROR_AND_TEAM = ("group=error", "group=metadata", "error=upstream_error", "metadata=team=a")
ONE = ("organization={organization}", "project={project}", "key={key}", f"model={MODEL}", "outcome=failed")
ADMIN_VIEWS = {
    "index": (
        *(f"days={days}" for days in (1, 7, 30, 90)),
        *(f"days=90&group={group}" for group in ("organization", "project", "key", "model", "outcome")),
        "days=30&bucket=hour&group=key",
        "days=90&group=key&groups=1",
        *(f"days=30&{narrowed}" for narrowed in BY_ERROR_AND_TEAM),
        *(f"days=90&{narrowed}" for narrowed in ONE),
    ),
    "requests": (
        "model=nothing",
        "days=90&min=0.012",
        "days=90&deployment=nowhere",
        "sort=cost",
        "sort=duration",
        "days=90&sort=cost&organization={organization}",
        *ONE,
        *(f"days=30&time=settled&{narrowed}" for narrowed in ONE),
    ),
    "prices": (f"model={MODEL}",),
}
CONSOLE_VIEWS = {
    "overview": (
        "days=90",
        "days=90&group=key",
        "days=30&bucket=hour&group=key",
        "days=90&group=key&groups=1",
        "group=outcome&days=30",
        *ONE[1:],
        *(f"days=30&{narrowed}" for narrowed in BY_ERROR_AND_TEAM),
    ),
    "usage": (
        "days=90",
        "days=30&bucket=hour",
        *(f"days=30&{narrowed}" for narrowed in ONE[1:]),
        f"days=7&key_kind=live&model={MODEL}",
        *(f"days=30&group={group}" for group in ("project", "key", "model", "outcome")),
        "days=90&group=key",
        *(f"days=30&{narrowed}" for narrowed in BY_ERROR_AND_TEAM),
    ),
    "model": ("project={project}",),
    "requests": (
        "sort=cost",
        "sort=duration",
        "outcome=any_error",
        "min=0.012&days=90",
        "days=90",
        "days=30&error=x",
        *ONE[1:],
    ),
}
# Names of routes that answer with a file, redirect, show no page, end the session, or count in Redis, which
# does not run here.
NO_PAGE = re.compile(
    "history$|app_list|export|file$|jsi18n|autocomplete|view_on_site|feed|log_?out|sign_out|login_webauthn"
)
# A part of a URL pattern, such as `<int:key_id>`.
PART = re.compile(r"<(?:\w+:)?(\w+)>")


def furnish(project: Project, owner: User) -> None:
    """Add a row of each kind that `seedusage` does not make."""
    organization = project.organization
    # The page of an invitation shows the first member, who has never signed in.
    for person, role in ((User.objects.create_user("bench-invited"), Role.VIEWER), (owner, Role.OWNER)):
        Member.objects.create(organization=organization, user=person, role=role)
    RateLimit.objects.create(project=project, requests_per_minute=60)
    # First an endpoint of the service, because the admin's pages show the first row.
    for place in (None, organization):
        webhooks.add(WebhookEndpoint(organization=place, url="https://bench.example.com"))
    Payment.objects.create(organization=organization, amount_cents=1_000, requested_by="bench")
    SpendAlert.objects.create(organization=organization, threshold_nanodollars=10**12, recipients=[owner.pk])
    EmailDomain.objects.create(organization=organization, domain="bench.example")
    IdentityProvider.objects.create(organization=organization)
    Group.objects.create(name="bench")
    own_roles.create(organization.pk, "bench", "", own_roles.with_choices(own_roles.CHOICES))
    groups.create(organization.pk, "bench", Member.objects.filter(user=owner), [project])
    Certificate.objects.create(
        organization=organization, name="bench", fingerprint="0" * 64, valid_at=timezone.now(),
        expires_at=timezone.now(),
    )  # fmt: skip
    Authenticator.objects.create(user=owner, type=Authenticator.Type.TOTP, data={})
    credit.grant(organization, 10**9, credit.Note("bench", "bench"))
    now, scope = database_now(), f"organization/{organization.pk}"
    outbox.write(
        now, [outbox.NewEvent(EventKind.SPEND, organization.pk, scope, f"{now:%Y-%m-%d}", "", SPENT)]
    )
    refusal = Refusal(project.api_keys.values_list("pk", flat=True)[0], 429, "rate_limit_exceeded")
    refused_requests.add(now, [{refusal: 1}])
    response_id = identity.new_id()
    StoredResponse.objects.create(
        id=response_id, organization=organization, project=project, is_test=False, model=MODEL,
        ended_at=now, size_bytes=1, content=response_store.encrypt(response_id, EMPTY_RESPONSE),
    )  # fmt: skip
    model, _ = ServedModel.objects.get_or_create(id=MODEL)
    Deployment.objects.create(model=model, name="sandbox", engine="sandbox")


def of_admin(key: APIKey) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each page of the admin, and its query strings."""
    yield from _pages("admin/", _values(key), ADMIN_VIEWS)


def of_console(key: APIKey) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each page of the console, and its query strings."""
    yield from _pages("console/", _values(key), CONSOLE_VIEWS)


def routes(below: str, resolver: URLResolver | None = None, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the URL pattern of each route below this path."""
    for each in (resolver or get_resolver()).url_patterns:
        path = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from routes(below, each, path)
        elif isinstance(each, URLPattern) and each.name and path.startswith(below):
            yield each.name, path


def _pages(
    below: str, values: Mapping[str, Any], views: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, list[str]]]:
    owners = {name: values[f"{name}_id"] for name in ("organization", "project", "key")}
    shown = ((name, pattern) for name, pattern in routes(below) if not NO_PAGE.search(name))
    for name, pattern in shown:
        own = {**values, **_row_of(name, values)}
        if not all(own.get(part) for part in PART.findall(pattern)):
            continue
        path = "/" + PART.sub(r"{\1}", pattern).format(**own)
        yield path, [query.format(**owners) for query in views.get(name, ())]


def _row_of(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id of the row that the route shows, under the names that URL patterns have for it."""
    if "rate_limit" in name:
        return {"limit_id": RateLimit.objects.values_list("pk", flat=True).first()}
    known = {
        "apikey": values["key_id"],
        "project": values["project_id"],
        "organization": values["organization_id"],
    }
    for model in apps.get_models():
        if name.startswith(f"{model._meta.app_label}_{model._meta.model_name}_"):
            first = model._default_manager.order_by("pk").values_list("pk", flat=True).first()
            row = known.get(str(model._meta.model_name), first)
            return {"object_id": row, "id": row}
    return {}


def _values(key: APIKey) -> dict[str, Any]:
    """Return the values of the parts of URLs: from the busiest key, or else from the first row."""
    project = key.project

    def first(model: Any, **owner: Any) -> Any:
        return model._default_manager.filter(**owner).order_by("pk").values_list("pk", flat=True).first()

    of_organization = {"organization": project.organization}
    return {
        "organization_id": project.organization_id, "project_id": project.pk, "key_id": key.pk,
        "generation_id": str(Generation.objects.filter(api_key=key).latest("admitted_at")),
        "response_id": first(StoredResponse), "entry_id": first(LedgerEntry),
        "price_id": first(Price), "limit_id": first(BudgetLimit), "alert_id": first(SpendAlert),
        "deployment_id": first(Deployment), "endpoint_id": first(WebhookEndpoint, **of_organization),
        "domain_id": first(EmailDomain, **of_organization), "member_id": first(Member, **of_organization),
        "group_id": first(MemberGroup, **of_organization), "role_id": first(OwnRole, **of_organization),
        "certificate_id": first(Certificate, **of_organization),
        "model": MODEL, "period": f"{database_now():%Y-%m}",
    }  # fmt: skip
