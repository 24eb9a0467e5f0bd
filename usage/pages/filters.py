"""The GET forms of pages about usage: they parse URLs, report mistakes, offer choices, make links."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from accounts import access
from accounts.models import APIKey, Organization, Project
from usage import insights
from usage.insights import Filters, Range
from usage.models import Outcome
from usage.models.generations import ANY_ERROR
from usage.pages.links import ADMIN, Choice, Pages, usual_ranges

Filtering = TypeVar("Filtering", bound=Filters)
Row = TypeVar("Row", bound=Model)
# The most options of a list; beyond it a name is typed, and the browser offers matches.
MAX_OPTIONS = 100
RANGE = ("days", "start", "end")
TIME = (*RANGE, "time_zone")
MAX_ID = 2**63 - 1
# Attributes of a field that a browser neither completes nor corrects.
NO_HELP = {"autocomplete": "off", "spellcheck": "false"}
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
# What the filter by the kind of key says of `is_test`.
_KEY_KINDS = {"live": False, "test": True}
# The names of parameters that differ from those of columns.
_PARAMETERS = {"organization_id": "organization", "project_id": "project", "api_key_id": "key"}
# The field of a part of an organization and of a project, whose row is read with theirs.
_PART = {"organization": "project", "project": "key"}
_SHOWN_KEY = re.compile(r"(.+) \(ck_(?:live|test)_(\w+)…\)")


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is set: its text, and the URL of the page without it."""

    text: str
    url: str


def parameters_of(filters: Filters) -> dict[str, object]:
    """Return the parameters with which the forms have these filters."""
    return {_PARAMETERS.get(column, column): value for column, value in filters.by_column().items()}


def words(name: object) -> str:
    """Return a name of the code as people read it: "client_cancelled" is "client cancelled"."""
    return str(name).replace("_", " ")


def is_id(text: str) -> bool:
    """Return whether the text is a decimal number that a database id can be."""
    # ASCII, because `isdecimal` also accepts the digits of other scripts; a longer number is no id.
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_ID


def newest_first(
    request: HttpRequest, rows: QuerySet[Row], size: int, url: Callable[..., str]
) -> tuple[list[Row], dict[str, str]]:
    """Return a page of `size` rows, and the links to other pages; `url` makes the URL of one (`before=…`)."""
    before = request.GET.get("before", "")
    rows = rows.filter(pk__lt=int(before)) if is_id(before) else rows
    # One more than is shown says whether there is an older page.
    found = list(rows.order_by("-pk")[: size + 1])
    older_url = url(before=found[size - 1].pk) if len(found) > size else ""
    return found[:size], {"older_url": older_url, "newest_url": url() if before else ""}


def generation_id_in(text: str) -> UUID | None:
    """Return the generation's id that the text contains, in any form that a client's log may have it in."""
    found = _UUID.search(text.lower())
    return UUID(found[0]) if found else None


def text_field(label: str, **attrs: str) -> forms.CharField:
    return forms.CharField(required=False, label=label, widget=forms.TextInput(NO_HELP | attrs))


def choice_field(label: str, options: Mapping[str, str], blank: str | None = "any") -> forms.ChoiceField:
    """Return an optional choice of names, each with the text that stands for it."""
    return forms.ChoiceField(
        required=False,
        label=label,
        choices=[*([] if blank is None else [("", blank)]), *options.items()],
        error_messages={"invalid_choice": f"%(value).40r is none of {', '.join(options)}."},
    )


class PairField(forms.CharField):
    """A key and a value, as `key=value`."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.TextInput(NO_HELP | {"placeholder": "key=value"})
        super().__init__(required=False, max_length=1_000, strip=False, widget=widget, **kwargs)

    def to_python(self, value: Any) -> Any:
        """Return the pair; raises `ValidationError` for a text without an equals sign."""
        key, separator, rest = (super().to_python(value) or "").partition("=")
        if key and not separator:
            raise ValidationError(f"{key[:40]!r} is no pair such as team=research.")
        return (key, rest) if separator else None

    def run_validators(self, value: Any) -> None:
        """Validate the text's length."""
        # Django calls this with the pair that `to_python` returned, and would take its length for the
        # text's.
        super().run_validators("=".join(value or ()))


def name_field(pattern: str = r"^[a-z._]{1,32}\Z") -> forms.RegexField:
    """Return an optional name of an endpoint, a dialect or an error."""
    mistakes = {"invalid": "%(value).40r is not the name of one."}
    # Not a choice: endpoints and dialects of requests from earlier releases can be asked for too.
    return forms.RegexField(pattern, required=False, error_messages=mistakes)


def offer(
    field: forms.Field, options: Sequence[tuple[str, str]], source: tuple[str, str, str] | None
) -> None:
    """Show the field as a list; beyond `MAX_OPTIONS`, as a text with matches from the admin's search.

    `source` is the app, model and foreign key whose rows the search offers; None for people to whom the admin
    is closed.
    """
    if len(options) <= MAX_OPTIONS:
        field.widget = forms.Select(choices=[("", "any"), *options])
        return
    if source is None:
        field.widget = forms.TextInput(NO_HELP | {"placeholder": "Name"})
        return
    search = dict(zip(("app_label", "model_name", "field_name"), source, strict=True))
    url = f"{reverse('admin:autocomplete')}?{urlencode(search)}"
    field.widget = forms.TextInput(
        NO_HELP | {"id": f"filter-{source[2]}", "placeholder": "Name", "data-suggest": url}
    )


class RowField(forms.Field):
    """An organization, project or key: its id, or the name of exactly one that the page may show.

    A name is the row's own, or as pages show it: with its organization, or with the beginning of its key.
    """

    person: access.Person
    """The person who filters; the form sets it."""
    pages: Pages = ADMIN
    """The pages that the form belongs to."""
    known: Model | None = None
    """A row that the page has read already."""

    def __init__(self, model: type[Model], column: str) -> None:
        super().__init__(required=False)
        self.model, self.column = model, column

    def to_python(self, value: Any) -> int | None:
        """Return the id; raises `ValidationError` for a name of none or of several."""
        text = str(value or "").strip()
        if not text:
            return None
        if is_id(text):
            return int(text)
        # A number beyond a database id is no name, and PostgreSQL refuses a NUL in a query.
        if not text.isdecimal() and "\x00" not in text:
            rows = self.pages.seen_by(self.person, self.model._default_manager.filter(self._named(text)))
            # Two are enough to know that the name is not of exactly one.
            if len(found := list(rows.values_list("pk", flat=True)[:2])) == 1:
                return int(found[0])
        name = self.model._meta.verbose_name
        raise ValidationError(f"No {name} has the name or number {text[:40]!r}, or several have the name.")

    def _named(self, text: str) -> Q:
        if self.model is Project:
            organization, _, project = text.rpartition(" / ")
            return Q(name=text) | Q(organization__name=organization, name=project)
        if self.model is APIKey and (parts := _SHOWN_KEY.fullmatch(text)):
            return Q(name=parts[1], public__startswith=parts[2])
        return Q(name=text)

    def row(self, row_id: int) -> Model | None:
        """Return the row with the owners that its name begins with; None if the page may show no such row."""
        if self.known is None or self.known.pk != row_id:
            rows = self.model._default_manager.select_related().filter(pk=row_id)
            self.known = self.pages.seen_by(self.person, rows).first()
        return self.known

    def label_of(self, row: Model) -> str:
        """Return the row's name; a project's without the organization that the page is about."""
        is_own = self.model is Project and self.pages.organization is not None
        return str(row).removeprefix(f"{self.pages.organization} / ") if is_own else str(row)

    def offer(self, rows: "QuerySet[Any] | Sequence[Any]", chosen: int | None) -> str:
        """Offer these rows, and the chosen one in any case; return what the field shows as its value."""
        options = {str(row.pk): self.label_of(row) for row in rows[: MAX_OPTIONS + 1]}
        is_long = len(options) > MAX_OPTIONS
        # A link may name a row beyond the first options.
        if chosen is not None and str(chosen) not in options:
            row = self.row(chosen)
            options[str(chosen)] = self.label_of(row) if row else f"number {chosen}"
        source = None if self.pages.limited_to is not None else ("usage", "generation", self.column)
        offer(self, list(options.items()), source)
        if chosen is None:
            return ""
        # A text field shows the whole name, which `to_python` reads again; a list needs the id.
        return str(self.row(chosen) or options[str(chosen)]) if is_long else str(chosen)


def first_mistake(form: forms.Form) -> str:
    """Return the error of the first wrong parameter of the URL."""
    name, texts = next(iter(form.errors.items()))
    return f"{name.title()}: {texts[0]}"


class UsageFilterForm(forms.Form):
    """The requests that a page is about, and its range of time. Absent parameters filter nothing."""

    page: str
    """The page's name among the admin's URLs."""
    usual_days: ClassVar[str] = ""
    """The range if the URL has none; empty: all time."""

    organization = RowField(Organization, "organization")
    project = RowField(Project, "project")
    key = RowField(APIKey, "api_key")
    model = text_field("Model")
    outcome = choice_field("Outcome", {name: words(name) for name in (ANY_ERROR, *Outcome.values)})
    key_kind = choice_field("Kind of key", {name: name for name in _KEY_KINDS})
    error = name_field(r"^[a-z0-9_.-]{1,64}\Z")
    metadata = PairField(label="Metadata pair")
    start = text_field("From", placeholder="2026-11-21", inputmode="numeric")
    end = text_field("To", placeholder="2026-11-21", inputmode="numeric")
    days = text_field("Days")
    time_zone = text_field("Time zone")
    bucket = text_field("Columns")

    over: Range | None = None
    """The time range; None: all time."""

    def __init__(self, query: QueryDict, person: access.Person, pages: Pages = ADMIN) -> None:
        # A label encloses its field here, so no field needs an id.
        super().__init__(query, auto_id=False)
        self.person, self.pages = person, pages
        for field in self.fields.values():
            if isinstance(field, RowField):
                field.person, field.pages = person, pages

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        query = {name: data.get(name, "") for name in (*TIME, "bucket")}
        has_range = bool(self.usual_days or any(query[name] for name in RANGE))
        if has_range or query["time_zone"]:
            usual = {"days": self.usual_days, "time_zone": self.pages.time_zone}
            try:
                over = self.read_range(
                    query | {name: query[name] or value for name, value in usual.items()}, timezone.now()
                )
                self.over = over if has_range else None
            except ValueError as error:
                # `parse_range` begins its message with the parameter that is wrong.
                name, _, text = str(error).partition(": ")
                self.add_error(*((name, text) if name in self.fields else (None, str(error))))
        return data

    def read_range(self, query: Mapping[str, str], now: datetime) -> Range:
        """Return the range of these parameters; raises `ValueError` as `insights.parse_range` does."""
        return insights.parse_range(query, now)

    @property
    def mistake(self) -> str:
        """Return the errors of the URL, in sentences that name the field."""
        return " ".join(
            f"{self[name].label}: {text}" if name in self.fields else str(text)
            for name, texts in self.errors.items()
            for text in texts
        )

    @cached_property
    def query(self) -> dict[str, str]:
        """Return the set parameters of a valid form, rows as ids; a start or an end overrides `days`."""
        found = {}
        for name, field in self.fields.items():
            value = self.data.get(name, "")
            if isinstance(field, RowField):
                # A row's name has become its id; the organization may have been chosen for the person.
                value = self.cleaned_data[name]
            elif getattr(field, "strip", True):
                value = value.strip()
            if value not in (None, ""):
                found[name] = str(value)
        if not (found.keys() & {"start", "end"}):
            return {"days": self.usual_days} | found if self.usual_days else found
        return {name: value for name, value in found.items() if name != "days"}

    def parameters(self, *names: str) -> dict[str, str]:
        """Return the parameters that are set."""
        return {name: value for name, value in self.query.items() if name in names}

    def link(self, name: str, query: Mapping[str, object]) -> str:
        return self.pages.url(name, query)

    @property
    def reader_time_zone(self) -> str:
        """Return the time zone whose hours and days the reader means."""
        return self.query.get("time_zone") or self.pages.time_zone

    def range_links(self) -> list[Choice]:
        now = timezone.now().astimezone(ZoneInfo(self.reader_time_zone))
        own = {name: self.query.get(name, "") for name in RANGE}
        ranges = {text: {**dict.fromkeys(RANGE, ""), **chosen} for text, chosen in usual_ranges(now).items()}
        return [self._choice(text, query == own, **query) for text, query in ranges.items()]

    def _choice(self, text: str, is_chosen: bool, **parameters: object) -> Choice:
        return Choice(text, self.link(self.page, self.query | parameters), is_chosen)

    @property
    def is_of_one_organization(self) -> bool:
        """Return whether the organization bounds the pages or the person, who can't remove it."""
        return self.pages.organization is not None or not access.is_operator(self.person)

    def without(self, *names: str) -> str:
        """Return the URL of this page without these parameters."""
        rest = {name: value for name, value in self.query.items() if name not in names}
        return self.link(self.page, rest)

    @property
    def filters(self) -> Filters:
        """Return the filters of a valid form, without its time."""
        return Filters(**self._columns("model", "outcome", "error", "metadata"))

    def _columns(self, *names: str) -> dict[str, Any]:
        """Return the values of the owners, the kind of key and these parameters by column; None if they are
        not set.
        """
        found = {
            column: self.cleaned_data[_PARAMETERS.get(column, column)] for column in (*_PARAMETERS, *names)
        } | {"is_test": _KEY_KINDS.get(self.cleaned_data["key_kind"])}
        return {column: None if value == "" else value for column, value in found.items()}

    def with_known_owners(self, filters: Filtering) -> Filtering:
        """Return the filters with the project's organization, or without the key's owners: fewer look-ups."""
        organization_id, project_id = filters.organization_id, filters.project_id
        if (key := self.row("key")) is not None:
            home_id = key.project.organization_id
            if project_id in (None, key.project_id) and organization_id in (None, home_id):
                return replace(filters, project_id=None, organization_id=None)
            return replace(filters, is_void=True)
        if (project := self.row("project")) is not None:
            home_id = project.organization_id
            return replace(filters, home_id=home_id, is_void=organization_id not in (None, home_id))
        return filters

    @cached_property
    def own_organizations(self) -> Sequence[Organization]:
        """Return the organizations of which a member of several chooses one; none for others."""
        if self.pages.organization or len(access.organizations_of(self.person) or ()) < 2:
            return []
        return list(access.seen_by(self.person, Organization.objects.all()))

    def row(self, name: str) -> Any:
        """Return the organization, project or key that a valid form names; None if there is none."""
        field, row_id = cast(RowField, self.fields[name]), self.cleaned_data[name]
        if row_id is None:
            return None
        if field.known is None and name in _PART:
            owner = getattr(cast(RowField, self.fields[_PART[name]]).known, name, None)
            field.known = owner if owner and owner.pk == row_id else None
        return field.row(row_id)

    def chips(self) -> list[Chip]:
        """Return the filters that are set and can be removed."""
        hidden = {"organization"} if self.is_of_one_organization else set()
        hidden |= {"project"} if self.pages.limited_to is not None else set()
        # The key first: it is read with its project, and a project with its organization.
        rows = {name: self.row(name) for name in ("key", "project", "organization") if name not in hidden}
        shown = {name: cast(RowField, self.fields[name]).label_of(row) for name, row in rows.items() if row}
        found = []
        for name in ("organization", "project", "key", "model", "outcome"):
            value = shown.get(name) or self.cleaned_data[name]
            if not value or name in hidden:
                continue
            found.append(Chip(f"{name}: {words(value) if name == 'outcome' else value}", self.without(name)))
        return found + [
            Chip(f"{words(name)}: {self.query[name]}", self.without(name))
            for name in ("key_kind", "error", "metadata")
            if name in self.query
        ]
