"""The base of an organization's pages: the permission check, the frame, and rendering."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, wraps
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.shortcuts import render as render_template
from django.urls import get_script_prefix, resolve, reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.views.decorators.cache import never_cache

from accounts import access
from accounts.forwarding import client_ip
from accounts.models import APIKey, Organization, Project
from accounts.pages.admin_site import CONFLICT
from usage.models import Credit
from usage.pages.filters import is_id
from usage.payment import configuration

Row = TypeVar("Row", bound=Model)

# A whole key, of which rows and pages have only what is before the last "_".
_SECRET = re.compile(r"(ck_(?:live|test)_[0-9A-Za-z]{12})_[0-9A-Za-z]+")
# The most organizations, and projects, that the switcher lists.
MAX_CHOICES = 50


class Link(NamedTuple):
    """A link of the frame."""

    text: str
    url: str
    is_current: bool


class _Page(NamedTuple):
    title: str
    name: str
    permission: str


_PAGES = (
    _Page("Start", "start", "accounts.view_organization"),
    _Page("Overview", "overview", "usage.view_hourlyusage"),
    _Page("Usage", "usage", "usage.view_hourlyusage"),
    _Page("Requests", "requests", "usage.view_generation"),
    _Page("Live", "live", "usage.view_generation"),
    _Page("API keys", "keys", "accounts.view_apikey"),
    _Page("Budgets and limits", "budgets", "usage.view_budgetlimit"),
    _Page("Models", "models", "accounts.view_organization"),
    _Page("Playground", "playground", "accounts.add_apikey"),
    _Page("Credit", "credit", "payment.view_payment"),
    _Page("Statements", "statements", "usage.view_statement"),
    _Page("Notifications", "notifications", "usage.view_event"),
    _Page("Webhooks", "webhooks", "chatapi.view_webhookendpoint"),
    _Page("Members", "members", "accounts.view_member"),
    _Page("Audit log", "audit", "audit.view_auditentry"),
    _Page("Settings", "settings", "accounts.view_organization"),
)


@dataclass(frozen=True, slots=True)
class Limit:
    """The single projects of an organization that a person sees."""

    projects: list[Project]
    """With archived ones, in natural order; at least one."""
    linked_id: str = ""
    """The project of the key that the URL names, by its number, if it is one of these."""


def _limit_of(membership: Any, key_id: str) -> Limit | None:
    """Return the limit of a membership; None if there is no project, so that it shows nothing."""
    keys = APIKey.objects.filter(project=OuterRef("pk"), pk=int(key_id) if is_id(key_id) else 0)
    rows: list[Any] = access.projects_of(membership, has_key=Exists(keys))
    for row in rows:
        row.organization = membership.organization
    # A link of a colleague who sees all projects may name a key only.
    linked = next((str(row.pk) for row in rows if row.has_key), "")
    return Limit(rows, linked) if rows else None


@dataclass(frozen=True)
class Console:
    """The organization that a request's URL names, and what the person may do in it."""

    person: Any
    organization: Organization
    others: list[Organization]
    """The person's other organizations."""
    project_id: str
    """The project in the URL, by its number or name; empty: all projects, or the first of a limit."""
    has_credit: bool
    """Whether the operator has granted credit, or refuses requests without it."""
    client_ip: str | None = None
    """The IP from which the person sent the request, if it is known."""
    limit: Limit | None = None
    """The projects to which the person's membership is limited; None: all of the organization."""

    @cached_property
    def projects(self) -> list[Project]:
        """Return the active projects that the person sees, read on first use: not all responses need them."""
        if self.limit is not None:
            rows = [row for row in self.limit.projects if row.is_active]
        else:
            rows = list(Project.objects.filter(organization=self.organization, is_active=True))
        for row in rows:
            row.organization = self.organization
        return rows

    @cached_property
    def project(self) -> Project | None:
        """Return the project that the URL names by id or name, archived ones included; None means all.

        A person with a limit always looks at one project: raises `Http404` for any but theirs.
        """
        text = self.project_id.strip()
        column = "pk" if is_id(text) else "name"
        values = [int(text)] if is_id(text) else [text, text.removeprefix(f"{self.organization} / ")]
        if self.limit is not None:
            own = [*self.projects, *self.limit.projects]
            found = next((row for row in own if not text or getattr(row, column) in values), None)
            if found is None:
                raise Http404("There is no such project.")
            return found
        # PostgreSQL refuses a NUL in a query.
        if not text or "\x00" in text:
            return None
        found = next((row for row in self.projects if getattr(row, column) in values), None)
        rows = Project.objects.select_related("organization").filter(**{f"{column}__in": values})
        return found or access.belonging_to(self.organization.pk, rows).first()

    def rows(self, rows: QuerySet[Row]) -> QuerySet[Row]:
        """Return those of the rows that the person may see here: the organization's, or those of the limit's
        projects. Every page reads its rows through this.
        """
        if self.limit is None:
            return access.belonging_to(self.organization.pk, rows)
        return access.in_projects([row.pk for row in self.limit.projects], rows)

    def rows_shown(self, rows: QuerySet[Row]) -> QuerySet[Row]:
        """Return the organization's rows or, with a limit, those of the project at which the person looks."""
        if self.limit is None or self.project is None:
            return self.rows(rows)
        return access.in_projects([self.project.pk], rows)

    @property
    def projects_for_keys(self) -> list[Project]:
        """Return the active projects for which a page makes keys; with a limit, at most the one at which the
        person looks, because the page shows the models of that one.
        """
        if self.limit is None or self.project is None:
            return self.projects
        return [self.project] if self.project.is_active else []

    def at(self, project_id: int) -> "Console":
        """Return the console of a page about a row of this project: with a limit, it looks at the project."""
        return self if self.limit is None else replace(self, project_id=str(project_id))

    def project_names(self, most: int | None = None) -> list[tuple[int, str]]:
        """Return the ids and names of the first active projects, and of the chosen one."""
        rows = self.projects[:most]
        if self.project is not None and self.project not in rows:
            rows.append(self.project)
        return [(row.pk, project_name(row)) for row in rows]

    @classmethod
    def of(cls, request: HttpRequest, memberships: Sequence[Any], organization_id: int) -> "Console":
        """Return the console of a person with these memberships, which are annotated with `has_credit`.

        Raises `Http404` for an organization that the person may not see.
        """
        person = request.user
        known = {each.organization_id: each for each in memberships}
        found: Any = known.pop(organization_id, None)
        organization = found and found.organization
        project_id, limit = request.GET.get("project", ""), None
        if found is not None and found.sees_single_projects and not access.is_operator(person):
            limit = _limit_of(found, request.GET.get("key", ""))
            project_id = project_id or (limit.linked_id if limit else "")
            found = found if limit else None
        if found is None and access.is_operator(person):
            rows = Organization.objects.annotate(has_credit=_has_credit("pk"))
            found = organization = rows.filter(pk=organization_id).first()
        if found is None:
            raise Http404("There is no such organization.")
        others = [each.organization for each in known.values()][:MAX_CHOICES]
        return cls(person, organization, others, project_id, found.has_credit, client_ip(request), limit)

    @property
    def shows_credit(self) -> bool:
        """Return whether the person may open the page Credit, and it has any content."""
        return (configuration.is_on() or self.has_credit) and self.may("payment.view_payment")

    def may(self, permission: str) -> bool:
        """Return whether the person has the permission in this organization, or in the projects that they
        see of it.
        """
        if self.limit is not None:
            return access.may_in_projects(self.person, permission, self.organization.pk)
        return access.may_in(self.person, permission, self.organization.pk)

    def url(self, name: str, /, *args: object, **query: object) -> str:
        """Return the URL of a page of this organization, with the parameters that are set. With a limit, it
        stays at the project, unless it names a key, which belongs to one.
        """
        if self.limit is not None and self.project is not None and not query.get("key"):
            query.setdefault("project", self.project.pk)
        parameters = urlencode({key: str(value) for key, value in query.items() if value not in (None, "")})
        path = reverse(f"console:{name}", args=[self.organization.pk, *args])
        return f"{path}?{parameters}" if parameters else path

    @property
    def feed_url(self) -> str:
        """Return the URL of the feed of running requests."""
        return reverse("console:home_of", args=[self.organization.pk]) + "live/feed"


def project_name(project: Project) -> str:
    """Return the project's name as lists of choices show it."""
    return project.name if project.is_active else f"{project.name} (archived)"


View = Callable[..., HttpResponseBase]


def page(permission: str, *, keeps_to_projects: bool = False) -> Callable[[View], View]:
    """Return a decorator for views of one organization: they get the `Console` instead of its id.

    Visitors are sent to the sign-in page. An organization that the person may not see is a 404, a missing
    permission is a 403. People who see single projects may open a page only if it `keeps_to_projects`: all
    that it shows and changes goes through `console.rows` and `console.project`. After an `IntegrityError`,
    which a change at the same time causes, the form is shown again with a message. The organization's time
    zone is active in the view. A URL with a whole key, which a person has pasted into a search, redirects to
    the URL without the secret: neither the page nor its links have it.
    """

    def decorate(view: View) -> View:
        @never_cache
        @wraps(view)
        def guarded(request: HttpRequest, organization_id: int, **kwargs: Any) -> HttpResponseBase:
            memberships = access.memberships_of(request.user, has_credit=_has_credit("organization"))
            if not access.may_sign_in(request.user):
                return redirect_to_login(_page_of(request), reverse("console:sign_in"))
            console = Console.of(request, memberships, organization_id)
            if not console.may(permission) or (console.limit is not None and not keeps_to_projects):
                raise PermissionDenied
            if console.limit is not None:
                _ = console.project  # raises `Http404` for a project that the person does not see
            if shorter := _without_secrets(request.GET):
                return redirect(f"{request.path}?{shorter}")
            with timezone.override(console.organization.time_zone):
                try:
                    return view(request, console, **kwargs)
                except IntegrityError:
                    messages.error(request, CONFLICT)
                    return redirect(_page_of(request) or request.get_full_path())

        guarded.permission = permission  # type: ignore[attr-defined]
        guarded.keeps_to_projects = keeps_to_projects  # type: ignore[attr-defined]
        return guarded

    return decorate


def _without_secrets(query: QueryDict) -> str:
    """Return the query string without the secret parts of keys, or "" if it has none."""
    pairs = [(name, value) for name, values in query.lists() for value in values]
    if not any(_SECRET.search(value) for _, value in pairs):
        return ""
    return urlencode([(name, _SECRET.sub(r"\1…", value)) for name, value in pairs])


def _has_credit(column: str) -> Exists:
    """Return an expression: whether the organization with the id in `column` has a row of credit."""
    return Exists(Credit.objects.filter(pk=OuterRef(column)))


def _page_of(request: HttpRequest) -> str:
    """Return the path of the page; for a POST, of the page with the form, or "" if that is unknown."""
    if request.method in ("GET", "HEAD"):
        return request.get_full_path()
    referer = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(referer, {request.get_host()}):
        return ""
    path = urlunsplit(("", "", *urlsplit(referer)[2:]))
    # A browser takes what follows two slashes for another host.
    return path if url_has_allowed_host_and_scheme(path, None) else ""


def render(
    request: HttpRequest, console: Console, template: str, context: Mapping[str, Any], status: int = 200
) -> HttpResponse:
    """Render a page in the console's frame; the context has its `title`."""
    match = request.resolver_match
    here = (match.url_name if match else None) or ""
    nav = menu(console, request.path)
    above = [link for link in nav if link.is_current and link.url.partition("?")[0] != request.path]
    frame = {
        "console": console,
        "organization": console.organization,
        "nav": nav,
        "parent": above[0] if above else None,
        "organizations": [
            Link(row.name, reverse("console:home_of", args=[row.pk]), False) for row in console.others
        ],
        "projects": _projects(request.GET, console, here),
        "are_projects_cut": len(console.projects) > MAX_CHOICES,
    }
    return render_template(request, f"console/{template}", frame | dict(context), status=status)


def menu(console: Console, path: str = "") -> list[Link]:
    """Return the links to the pages that the person may open; that of the path, or above it, is current."""
    return [_nav_link(path, console, each) for each in _PAGES if _is_shown(console, each)]


def _is_shown(console: Console, of: _Page) -> bool:
    if console.limit is not None and not _keeps_to_projects(of.name):
        return False
    return console.shows_credit if of.name == "credit" else console.may(of.permission)


@cache
def _keeps_to_projects(name: str) -> bool:
    """Return what the decorator of a page's view says, which the decorators around it copy."""
    return bool(getattr(_view_of(reverse(f"console:{name}", args=[0])), "keeps_to_projects", False))


def permission_of(url: str) -> str:
    """Return the permission that a page of an organization asks for, by its URL."""
    return str(getattr(_view_of(url.partition("?")[0]), "permission", ""))


def _view_of(path: str) -> View:
    return resolve(f"/{path.removeprefix(get_script_prefix())}").func


def _nav_link(path: str, console: Console, of: _Page) -> Link:
    """Return the menu's link to a page; it is current on the pages below it, too."""
    url = console.url(of.name, project=console.project and console.project.pk)
    return Link(of.title, url, path.startswith(url.partition("?")[0]))


# The pages that can show one project; on these, the switcher's links stay on the page.
_BY_PROJECT = {
    "overview", "usage", "requests", "live", "keys", "new_key", "budgets", "rate_limits", "models",
    "playground",
}  # fmt: skip


def _projects(query: QueryDict, console: Console, here: str) -> list[Link]:
    """Return the links to all projects and to each one, with the URL's other parameters. A person who sees
    single projects gets the links to these.
    """
    usual = "overview" if console.may("usage.view_hourlyusage") else "models"
    name = here if here in _BY_PROJECT else usual
    kept = {key: value for key, value in query.items() if key not in ("project", "key", "after", "before")}
    kept = kept if name == here else {}
    chosen = console.project and console.project.pk
    every = [Link("All projects", console.url(name, **kept), chosen is None)] if console.limit is None else []
    return every + [
        Link(text, console.url(name, **kept, project=row_id), row_id == chosen)
        for row_id, text in console.project_names(MAX_CHOICES)
    ]
