"""What a page's filters offer: a list to choose from, and where that would be too long, a field for names
that offers some.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model, Q, QuerySet
from django.urls import reverse
from django.utils.http import urlencode

from accounts import access
from accounts.models import APIKey, Organization, Project

MAX_OPTIONS = 200
"""The most that a list offers; more nobody scrolls through."""

_TENANTS: Mapping[str, type[Model]] = {"organization": Organization, "project": Project, "key": APIKey}
_FIELDS = {"organization": "organization", "project": "project", "key": "api_key"}
_KEY = re.compile(r"(.+) \(ck_(?:live|test)_(\w+)…\)")


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter: pairs of what is sent and what is read; or the address that offers names, of which one is
    typed.
    """

    name: str
    label: str
    options: Sequence[tuple[str, str]]
    chosen: str
    search: str = ""


def search_address(app: str, model: str, field: str) -> str:
    """Where the admin offers rows for that foreign key, to those who may see them."""
    return f"{reverse('admin:autocomplete')}?{urlencode({'app_label': app, 'model_name': model, 'field_name': field})}"


def by_row(name: str, label: str, rows: "QuerySet[Any]", chosen: int | None) -> Choice:
    """A choice of organizations, projects or keys."""
    found = list(rows[: MAX_OPTIONS + 1])
    picked = next((row for row in found if row.pk == chosen), None)
    if picked is None and chosen is not None:
        picked = rows.model._default_manager.filter(pk=chosen).first()
    if len(found) > MAX_OPTIONS:
        return Choice(
            name, label, [], str(picked or chosen or ""), search_address("usage", "generation", _FIELDS[name])
        )
    options = {str(row.pk): str(row) for row in found}
    if chosen is not None:
        options.setdefault(str(chosen), str(picked or f"number {chosen}"))
    return Choice(name, label, list(options.items()), str(chosen or ""))


def by_name(name: str, label: str, names: Iterable[str], chosen: str | None) -> Choice:
    """A choice of what is sent as it is read."""
    return Choice(name, label, [(each, each) for each in names], chosen or "")


def numbered(query: Mapping[str, str], user: access.Person) -> dict[str, str]:
    """The query with the number of each organization, project and key that is asked for by name, if the
    person sees exactly one such.

    What is called so alone, or so as pages show it: with its organization, or with the beginning of its key.
    """
    named = {
        name: query[name]
        for name in _TENANTS
        if query.get(name) and not query[name].isdecimal() and "\x00" not in query[name]
    }
    return {**query, **{name: _number(name, text, user) or text for name, text in named.items()}}


def _number(name: str, text: str, user: access.Person) -> str | None:
    rows = access.seen_by(user, _TENANTS[name]._default_manager.filter(_called(name, text)))
    found = list(rows.values_list("pk", flat=True)[:2])
    return str(found[0]) if len(found) == 1 else None


def _called(name: str, text: str) -> Q:
    if name == "project":
        organization, _, project = text.rpartition(" / ")
        return Q(name=text) | Q(organization__name=organization, name=project)
    if name == "key" and (parts := _KEY.fullmatch(text)):
        return Q(name=parts[1], public__startswith=parts[2])
    return Q(name=text)
