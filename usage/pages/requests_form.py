"""The GET form of the list of requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms import BoundField

from accounts import access
from accounts.model_lists import list_allows
from accounts.models import APIKey, Organization, Project
from usage.formatting import time_span, usd
from usage.insights import RequestFilters
from usage.models import Price
from usage.pages.filters import (
    NO_HELP,
    TIME,
    Chip,
    UsageFilterForm,
    choice_field,
    generation_id_in,
    name_field,
    text_field,
)
from usage.pages.forms import USDField
from usage.pages.links import Choice

# Models are named nowhere else on the page, so more of them are offered than rows.
_MAX_MODELS = 200
_ORDERS = {"newest": "Newest", "cost": "Most expensive", "duration": "Slowest"}
SOURCES = {"upstream": "provider", "counted": "chatapi", "none": "none"}


class GenerationIdField(forms.Field):
    """A generation's id, anywhere in a text."""

    def to_python(self, value: Any) -> UUID | None:
        """Return the id; raises `ValidationError` for a text without one."""
        text = str(value or "").strip()
        found = generation_id_in(text)
        if text and found is None:
            raise ValidationError(
                f"{text[:80]!r} contains no request's id, which has 32 hexadecimal digits, such as 0198…."
            )
        return found


class RequestsForm(UsageFilterForm):
    """The filters of the list of requests and of its exports."""

    page = "requests"

    id = GenerationIdField(
        required=False, widget=forms.TextInput({"type": "search", "placeholder": "in any form"} | NO_HELP)
    )
    time = choice_field("Date means", {"admitted": "started", "settled": "finished"}, blank=None)
    endpoint = name_field()
    dialect = name_field()
    source = choice_field("Token count by", SOURCES)
    deployment = text_field("Deployment")
    end_user = forms.CharField(
        required=False, label="End user", max_length=512, widget=forms.TextInput(NO_HELP)
    )
    sort = choice_field("Sort by", _ORDERS, blank=None)
    min = USDField(label="Cost from (USD)", required=False, widget=forms.TextInput)
    max = USDField(label="Cost to (USD)", required=False, widget=forms.TextInput)

    def clean(self) -> dict[str, Any]:
        """Refuse an end user without the owner: people of organizations have one, operators choose."""
        data = super().clean()
        owners = (data.get("organization"), data.get("project"), data.get("key"))
        # No index begins with the end user's name, so a search over all tenants would read every row.
        if data.get("end_user") and access.is_operator(self.person) and not any(owners):
            self.add_error("end_user", "Choose the organization, project or key of this end user, too.")
        return data

    @property
    def filters(self) -> RequestFilters:
        data = self.cleaned_data
        filters = RequestFilters(
            **self._columns(
                "model", "outcome", "error", "metadata", "endpoint", "dialect", "deployment", "end_user", "id"
            ),
            time=data["time"] or "admitted",
            usage_source=data["source"] or None,
            since=self.over.start if self.over else None,
            until=self.over.end if self.over else None,
            min_nanodollars=data["min"],
            max_nanodollars=data["max"],
            sort=data["sort"] or "newest",
        )
        return self.with_known_owners(filters)

    def offer_choices(self, endpoints: Iterable[str], dialects: Iterable[str]) -> None:
        """Read the options of each list; projects and keys are those of the chosen organization."""
        data, shown = self.cleaned_data, dict(self.data.items())
        for name, found in self._offered_rows().items():
            field: Any = self.fields[name]
            shown[name] = field.offer(found, data[name])
        self.data = shown
        # Without a price nothing is served; a model that lost its own can still be asked for.
        models = list(
            Price.objects.order_by("model").values_list("model", flat=True).distinct()[:_MAX_MODELS]
        )
        if (own := self.pages.limited_to) is not None:
            projects = [(str(row.pk), row.name) for row in dict.fromkeys([own, *self.pages.projects()])]
            self.fields["project"].widget = forms.Select(choices=projects)
            models = [name for name in models if list_allows(own.models_mode, own.listed_models, name)]
        offered = {"model": models, "endpoint": list(endpoints), "dialect": list(dialects)}
        for name, known in offered.items():
            chosen = [] if data[name] in ("", *known) else [data[name]]
            options = [("", "any"), *((each, each) for each in [*known, *chosen])]
            self.fields[name].widget = forms.Select(choices=options)

    def _offered_rows(self) -> Mapping[str, "QuerySet[Any] | Sequence[Any]"]:
        if self.pages.organization:
            project = self.cleaned_data["project"]
            keys = self.pages.seen_by(self.person, APIKey.objects.all())
            return {
                "project": self.pages.projects(),
                "key": keys.filter(project=project) if project else keys,
            }
        chosen = self.cleaned_data["organization"]
        home = {} if chosen is None else {"organization": chosen}
        rows: dict[str, QuerySet[Any]] = {
            "organization": Organization.objects.all(),
            "project": Project.objects.filter(**home).select_related("organization"),
            "key": APIKey.objects.filter(**{f"project__{name}": value for name, value in home.items()}),
        }
        return {name: self.pages.seen_by(self.person, found) for name, found in rows.items()}

    @property
    def usual_fields(self) -> list[BoundField]:
        owners = ("project", "key") if self.pages.organization else ("organization",)
        return [self[name] for name in ("id", *owners, "model", "outcome", "start", "end")]

    @property
    def rare_fields(self) -> list[BoundField]:
        """Return the fields that are shown on demand. What runs a model is the operators' to know."""
        names = ["end_user", "metadata", "error", "key_kind", "endpoint", "dialect", "source"]
        if self.pages.organization:
            names.append("time")
        else:
            deployment = ["deployment"] if access.is_operator(self.person) else []
            names = ["time", "project", "key", *names, *deployment]
        return [self[name] for name in (*names, "min", "max")]

    @property
    def is_rare_open(self) -> bool:
        return any(field.value() for field in self.rare_fields if field.name != "time")

    @property
    def kept(self) -> dict[str, str]:
        """Return the parameters that the form keeps without showing them."""
        return self.parameters("days", "time_zone", "sort")

    def settled_url(self, **narrowed: object) -> str:
        """Return the URL of this list, narrowed to the requests that finished in its range."""
        return self.link(self.page, self.query | narrowed | {"time": "settled"})

    def sort_links(self) -> list[Choice]:
        chosen = self.filters.sort
        return [self._choice(text, name == chosen, sort=name) for name, text in _ORDERS.items()]

    def chips(self) -> list[Chip]:
        data = self.cleaned_data
        texts = {
            "id": f"id: {data['id']}",
            "endpoint": f"endpoint: {data['endpoint']}",
            "dialect": f"dialect: {data['dialect']}",
            "source": f"tokens counted by: {SOURCES.get(data['source'])}",
            "deployment": f"deployment: {data['deployment']}",
            "end_user": f"end user: {data['end_user']}",
            "min": f"Cost ≥ {usd(data['min'] or 0)}",
            "max": f"Cost ≤ {usd(data['max'] or 0)}",
        }
        found = [Chip(text, self.without(name)) for name, text in texts.items() if name in self.query]
        if self.over is not None:
            found.append(Chip(self._range_text(), self.without(*TIME, "time")))
        return [*super().chips(), *found]

    def _range_text(self) -> str:
        assert self.over is not None, "there is a range"
        days, zone = self.query.get("days"), self.query.get("time_zone")
        text = time_span(self.over.start, self.over.end)
        if days:
            text = ("today" if days == "1" else f"last {days} days") + (f" ({zone})" if zone else "")
        return f"finished: {text}" if self.cleaned_data["time"] == "settled" else text
