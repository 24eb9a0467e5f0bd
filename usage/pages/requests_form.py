"""The GET form of the list of requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms import BoundField

from accounts import access
from accounts.models import APIKey, Organization, Project
from usage.formatting import time_span, usd
from usage.insights import RequestFilters
from usage.models import Price
from usage.pages.filters import (
    MAX_OPTIONS,
    NO_HELP,
    TIME,
    Chip,
    UsageFilterForm,
    choice_field,
    generation_id_in,
    text_field,
)
from usage.pages.forms import USDField

SOURCES = {"upstream": "provider", "counted": "chatapi", "none": "none"}


class GenerationIdField(forms.Field):
    """A generation's id, anywhere in a text."""

    def to_python(self, value: Any) -> UUID | None:
        """Return the id; raises `ValidationError` for a text without one."""
        text = str(value or "").strip()
        found = generation_id_in(text)
        if text and found is None:
            raise ValidationError(f"{text[:80]!r} contains no request's id, such as chatcmpl-0198….")
        return found


class PairField(forms.CharField):
    """A key and a value, as `key=value`."""

    def __init__(self, **kwargs: Any) -> None:
        widget = forms.TextInput(NO_HELP | {"placeholder": "key=value"})
        super().__init__(required=False, max_length=1_000, widget=widget, **kwargs)

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


def _name_field(pattern: str = r"^[a-z._]{1,32}\Z") -> forms.RegexField:
    mistakes = {"invalid": "%(value).40r is not the name of one."}
    # Not a choice: endpoints and dialects of requests from earlier releases can be asked for too.
    return forms.RegexField(pattern, required=False, error_messages=mistakes)


class RequestsForm(UsageFilterForm):
    """The filters of the list of requests and of its exports."""

    page = "requests"

    id = GenerationIdField(
        required=False,
        widget=forms.TextInput({"type": "search", "placeholder": "chatcmpl-…"} | NO_HELP),
    )
    time = choice_field("Date means", {"admitted": "started", "settled": "finished"}, blank=None)
    endpoint = _name_field()
    dialect = _name_field()
    source = choice_field("Token count by", SOURCES)
    deployment = text_field("Deployment")
    end_user = forms.CharField(
        required=False, label="End user", max_length=512, widget=forms.TextInput(NO_HELP)
    )
    metadata = PairField(label="Metadata pair")
    error = _name_field(r"^[a-z0-9_.-]{1,64}\Z")
    sort = choice_field("Sort by", {"newest": "newest", "cost": "cost", "duration": "duration"}, blank=None)
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
        return RequestFilters(
            **self._columns(),
            time=data["time"] or "admitted",
            endpoint=data["endpoint"] or None,
            dialect=data["dialect"] or None,
            usage_source=data["source"] or None,
            deployment=data["deployment"] or None,
            since=self.over.start if self.over else None,
            until=self.over.end if self.over else None,
            min_nanodollars=data["min"],
            max_nanodollars=data["max"],
            id=data["id"],
            end_user=data["end_user"] or None,
            metadata=data["metadata"],
            error=data["error"] or None,
            sort=data["sort"] or "newest",
        )

    def offer_choices(self, endpoints: Iterable[str], dialects: Iterable[str]) -> None:
        """Read the options of each list; projects and keys are those of the chosen organization."""
        data, shown = self.cleaned_data, dict(self.data.items())
        for name, found in self.offered_rows().items():
            field: Any = self.fields[name]
            shown[name] = field.offer(found, data[name])
        self.data = shown
        # Without a price nothing is served; a model that lost its own can still be asked for.
        models = list(
            Price.objects.order_by("model").values_list("model", flat=True).distinct()[:MAX_OPTIONS]
        )
        offered = {"model": models, "endpoint": list(endpoints), "dialect": list(dialects)}
        for name, known in offered.items():
            chosen = [] if data[name] in ("", *known) else [data[name]]
            options = [("", "any"), *((each, each) for each in [*known, *chosen])]
            self.fields[name].widget = forms.Select(choices=options)

    def offered_rows(self) -> Mapping[str, "QuerySet[Any] | Sequence[Any]"]:
        """Return the rows that each field offers."""
        chosen = self.cleaned_data["organization"]
        home = {} if chosen is None else {"organization": chosen}
        rows: dict[str, QuerySet[Any]] = {
            "organization": Organization.objects.all(),
            "project": Project.objects.filter(**home).select_related("organization"),
            "key": APIKey.objects.filter(**{f"project__{name}": value for name, value in home.items()}),
        }
        return {name: access.seen_by(self.person, found) for name, found in rows.items()}

    @property
    def usual_fields(self) -> list[BoundField]:
        return [
            self[name] for name in ("id", "organization", "model", "outcome", "start", "end", "time", "sort")
        ]

    @property
    def rare_fields(self) -> list[BoundField]:
        """Return the fields that are shown on demand. What runs a model is the operators' to know."""
        deployment = ["deployment"] if access.is_operator(self.person) else []
        clients = ("project", "key", "end_user", "metadata", "error", "endpoint", "dialect")
        return [self[name] for name in (*clients, "source", *deployment, "min", "max")]

    @property
    def is_rare_open(self) -> bool:
        """Return whether one of the rare fields is set."""
        return any(field.value() for field in self.rare_fields)

    @property
    def kept(self) -> dict[str, str]:
        """Return the parameters that the form keeps without showing them."""
        return self.parameters("days", "time_zone")

    def chips(self) -> list[Chip]:
        data = self.cleaned_data
        texts = {
            "endpoint": f"endpoint: {data['endpoint']}",
            "dialect": f"dialect: {data['dialect']}",
            "source": f"tokens counted by: {SOURCES.get(data['source'])}",
            "error": f"error: {data['error']}",
            "deployment": f"deployment: {data['deployment']}",
            "end_user": f"end user: {data['end_user']}",
            "metadata": f"metadata: {self.query.get('metadata')}",
            "min": f"cost ≥ {usd(data['min'] or 0)}",
            "max": f"cost ≤ {usd(data['max'] or 0)}",
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
