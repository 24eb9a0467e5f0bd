"""What the operator's pages read from their address, and the addresses that they link to."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode

from accounts.models import APIKey, Organization, Project
from usage.insights import Filters
from usage.models import Outcome
from usage.models.outcomes import ANY_ERROR

_MAX_ID = 2**63 - 1
_FIELDS = {
    "organization": "organization_id",
    "project": "project_id",
    "key": "api_key_id",
    "model": "model",
    "outcome": "outcome",
}
"""Names in an address, which are those of the groups, and the filter that each sets."""
TIME = ("days", "start", "end", "time_zone")
"""Names in an address that choose a range of time."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is set: what it says, and the address without it."""

    text: str
    url: str


def address(name: str, query: Mapping[str, object]) -> str:
    """The address of the admin's page with what of this query is set."""
    asked = urlencode({key: str(value) for key, value in query.items() if value not in (None, "")})
    return reverse(f"admin:{name}") + (f"?{asked}" if asked else "")


def only(query: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """What of the query has these names, and is set."""
    return {name: query[name] for name in names if query.get(name)}


def filters_in(query: Mapping[str, str]) -> Filters:
    """The filters that a page's query asks for; raises `ValueError` with a text for its reader."""
    return Filters(
        organization_id=_id(query, "organization"),
        project_id=_id(query, "project"),
        api_key_id=_id(query, "key"),
        model=text_in(query, "model"),
        outcome=_outcome(query.get("outcome") or None),
    )


def filters_query(filters: Filters) -> dict[str, object]:
    """The query that asks for these filters."""
    return {name: value for name, field in _FIELDS.items() if (value := getattr(filters, field)) is not None}


def chips(name: str, query: Mapping[str, object], filters: Filters) -> list[Chip]:
    """The filters that are set, each with the address of this page without it."""
    known = filters_query(filters)
    rest = {key: value for key, value in query.items() if key not in _FIELDS}
    without = {each: {key: value for key, value in known.items() if key != each} for each in known}
    return [
        Chip(f"{each}: {_label(each, value)}", address(name, rest | without[each]))
        for each, value in known.items()
    ]


def _label(name: str, value: object) -> str:
    """How what is filtered by is called now; a number where it is not known."""
    models: dict[str, type[Any]] = {"organization": Organization, "project": Project, "key": APIKey}
    row = models[name].objects.filter(pk=value).first() if name in models else None
    if row:
        return str(row)
    return words(str(value)) if name == "outcome" else str(value)


def words(outcome: str) -> str:
    """An outcome as people read it: "client cancelled". Names that people have given, as of models, stay as
    they are.
    """
    return outcome.replace("_", " ")


def _id(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name) or None
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _MAX_ID):
        raise ValueError(f"{name}: {text[:40]!r} is neither the number nor the name of exactly one.")
    return int(text)


def text_in(query: Mapping[str, str], name: str) -> str | None:
    """The text of that name; raises `ValueError` for one that no database takes."""
    text = query.get(name) or None
    if text is not None and "\x00" in text:
        raise ValueError(f"{name}: can't hold a NUL character.")
    return text


def _outcome(name: str | None) -> str | None:
    if name is not None and name not in (*Outcome.values, ANY_ERROR):
        raise ValueError(f"outcome: {name[:40]!r} is none of {', '.join(Outcome.values)}.")
    return name


assert {each.name for each in fields(Filters)} == set(_FIELDS.values()), (
    "each filter has its name in addresses"
)
