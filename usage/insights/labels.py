"""The current names of groups of sums: organizations, projects, keys, and what is its own name."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import BooleanField, CharField, F, QuerySet, Value

from accounts.models import APIKey, Organization, Project
from usage.insights.sources import NUMERIC_GROUPS, GroupBy, rows_of
from usage.models import Outcome

Labels = Mapping[tuple[GroupBy, Any], str]

_TEXT, _NO_TEXT, _NO = CharField(), Value("", CharField()), Value(False, BooleanField())
# Of each table its rows, and two more columns that their names are made of. A union's columns have one type.
_TABLES: Mapping[GroupBy, tuple[QuerySet[Any], Any, Any]] = {
    "organization": (Organization.objects.all(), _NO_TEXT, _NO),
    "project": (Project.objects.all(), F("organization__name"), _NO),
    "key": (APIKey.objects.all(), F("public"), F("is_test")),
}


def labels_of(ids: Mapping[GroupBy, Iterable[Any]]) -> Labels:
    """Return the names of groups of several kinds by kind and id, in one statement."""
    found: dict[tuple[GroupBy, Any], str] = {}
    queries = []
    for group_by, members in ids.items():
        if group_by in NUMERIC_GROUPS:
            rows, more, flag = _TABLES[group_by]
            columns = {"table": Value(group_by, _TEXT), "more": more, "flag": flag}
            rows = rows.filter(pk__in=list(members)).order_by().annotate(**columns)
            queries.append(rows.values_list("table", "pk", "name", "more", "flag"))
            continue
        for name in members:
            found[group_by, name] = Outcome(name).label.lower() if group_by == "outcome" else name or "none"
    return found | {(table, pk): _name(table, *columns) for table, pk, *columns in rows_of(queries)}


def _name(table: GroupBy, name: str, more: str, flag: bool) -> str:
    match table:
        case "project":
            return str(Project(name=name, organization=Organization(name=more)))
        case "key":
            return str(APIKey(name=name, public=more, is_test=flag))
    return name
