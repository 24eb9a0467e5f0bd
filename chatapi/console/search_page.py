"""One search for everything of an organization: the field in the frame of each page, and its results.

All look-ups in large tables are by an index: a request by its id, an end user by its name. Of very many keys,
the newest are searched.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounts import end_users
from accounts.models import SHOWN_NAME, APIKey, EndUser, Member, Project
from chatapi.console.offers import models_named
from chatapi.console.search import EverythingSearch, KeySearch, MemberSearch
from chatapi.console.tenancy import Console, menu, page, project_name, render
from usage.models import Generation, Statement
from usage.pages.filters import first_mistake, generation_id_in
from usage.statements.month import Month
from usage.statements.reading import open_months

# The results of each kind, and the keys of an organization that are searched, the newest first.
MOST, MOST_KEYS = 10, 20_000
_STATEMENTS = "usage.view_statement"


@dataclass(frozen=True, slots=True)
class Hit:
    """One result."""

    text: str
    url: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Hits:
    """The first results of one kind, and the URL of a list with all of them; empty if these are all."""

    title: str
    rows: list[Hit]
    more_url: str = ""


@require_safe
@page("accounts.view_organization", keeps_to_projects=True)
def search_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show what the text finds; redirect to the page of a request or a statement that it names."""
    form = EverythingSearch(request.GET)
    if not form.is_valid():
        mistaken = {"title": "Search", "mistake": first_mistake(form)}
        return render(request, console, "found.html", mistaken, status=400)
    text = form.cleaned_data["q"]
    if named := _request_url(console, text) or _statement_url(console, text):
        return redirect(named)
    project_id = console.project and console.project.pk
    context = {
        "title": "Search",
        "search_text": text,
        "groups": [found for found in _groups(console, text) if found.rows] if text else [],
        "requests_url": console.url("requests", project=project_id, end_user=text)
        if console.may("usage.view_generation")
        else "",
        "most": MOST,
    }
    return render(request, console, "found.html", context)


def _request_url(console: Console, text: str) -> str:
    found = generation_id_in(text) if console.may("usage.view_generation") else None
    rows = console.rows(Generation.objects.filter(pk=found)) if found else None
    row = rows.only("id", "project_id").first() if rows is not None else None
    return console.at(row.project_id).url("request", row) if row else ""


def _statement_url(console: Console, text: str) -> str:
    """Return the URL of the statement of a month or of the credit note with this number; empty if none."""
    month = (
        Month.parse(text.partition("-CN")[0]) if console.limit is None and console.may(_STATEMENTS) else None
    )
    if month is None:
        return ""
    rows = console.rows(Statement.objects.filter(month=month.first_day))
    return console.url("statement", month) if month in open_months() or rows.exists() else ""


def _groups(console: Console, text: str) -> Iterator[Hits]:
    project_id, words = console.project and console.project.pk, text.casefold()
    pages = [Hit(link.text, link.url) for link in menu(console) if words in link.text.casefold()]
    yield Hits("Pages", pages[:MOST])
    yield _cut("Projects", _projects(console, text), console, "settings" if console.limit is None else "")
    if console.may("accounts.view_apikey"):
        yield _cut("API keys", _keys(console, text), console, "keys", q=text)
    names = models_named(console, text)
    models = [Hit(name, console.url("model", name, project=project_id)) for name in names]
    yield _cut("Models", models, console, "models", project=project_id)
    if console.may("usage.view_hourlyusage"):
        yield Hits("End users", _people(console, text))
    # Members are of the whole organization.
    if console.limit is None and console.may("accounts.view_member"):
        yield _cut("Members", _members(console, text), console, "members", q=text)


def _cut(title: str, hits: list[Hit], console: Console, name: str, **query: object) -> Hits:
    has_more = len(hits) > MOST and name
    return Hits(title, hits[:MOST], console.url(name, **query) if has_more else "")


def _projects(console: Console, text: str) -> list[Hit]:
    rows = console.rows(Project.objects.filter(name__icontains=text))[: MOST + 1]
    name = "overview" if console.may("usage.view_hourlyusage") else "models"
    return [Hit(project_name(row), console.url(name, project=row.pk)) for row in rows]


def _keys(console: Console, text: str) -> list[Hit]:
    form = KeySearch({"q": text})
    if not form.is_valid():
        return []
    # A subquery with a limit, so that names of very many keys are not compared.
    newest = console.rows_shown(APIKey.objects.order_by("-pk")).values("pk")[:MOST_KEYS]
    rows = form.found_in(APIKey.objects.filter(pk__in=newest), timezone.now())
    found = rows.select_related("project").order_by("-pk")[: MOST + 1]
    return [
        Hit(row.name, console.url("key", row.pk), f"{row.redacted}, project {row.project.name}")
        for row in found
    ]


def _people(console: Console, text: str) -> list[Hit]:
    """Return the end users with this name or, in a single project that counts them, with this beginning."""
    counting = {row.pk: row for row in console.projects if row.counts_end_users}
    if console.project is not None:
        counting = {pk: row for pk, row in counting.items() if pk == console.project.pk}
    rows = EndUser.objects.filter(project__in=counting)
    found = list(rows.filter(name__in=[text, end_users.digest(text)]).order_by("project_id")[:MOST])
    if len(counting) == 1:
        # In the order of the unique index, in which names with the same beginning are neighbours.
        following = rows.filter(name__gt=text).order_by("name")[: MOST * 2]
        found += [row for row in following if row.name.startswith(text) and row not in found]
    return [
        Hit(
            row.name,
            console.url("overview", project=row.project_id, end_user=row.name, days=30),
            f"project {counting[row.project_id].name}",
        )
        for row in found[:MOST]
    ]


def _members(console: Console, text: str) -> list[Hit]:
    form = MemberSearch({"q": text})
    if not form.is_valid():
        return []
    rows = form.found_in(console.rows(Member.objects.select_related("user"))).order_by(SHOWN_NAME)
    return [Hit(row.name, console.url("members", q=row.name), row.user.email) for row in rows[: MOST + 1]]
