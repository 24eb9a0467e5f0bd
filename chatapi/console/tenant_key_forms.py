"""The forms of an API key: its name and rights, and a new one with its limits and budget."""

from datetime import datetime
from typing import Any

from django import forms
from django.db import transaction
from django.forms import BoundField
from django.utils import timezone

from accounts import keys
from accounts.models import APIKey, KeyScope, Project, RateLimit
from accounts.pages.admin_mixins import OwnChangesForm, check_year
from accounts.pages.allowed_ips_field import EXAMPLE, AllowedIPsField
from chatapi.console.offers import model_names
from chatapi.console.tenancy import Console
from chatapi.wire.dialects import DIALECTS
from usage.budget_words import EACH_PERIOD
from usage.models import BudgetLimit, Scope
from usage.models.budget_keys import LimitKey
from usage.pages.forms import USDField

# The scopes of admin keys, which are made in the admin only.
_OF_ADMIN_KEYS = (KeyScope.USAGE, KeyScope.MANAGEMENT)


class ExpiryField(forms.DateTimeField):
    """A time in the organization's time zone, to the minute. An unchanged field keeps the key's exact time.

    Its text alone would lose the seconds, and is ambiguous in the hour that comes twice when the clocks go
    back.
    """

    kept: datetime | None = None

    def to_python(self, value: Any) -> datetime | None:
        if self.kept is not None and value == f"{timezone.localtime(self.kept):%Y-%m-%dT%H:%M}":
            return self.kept
        return super().to_python(value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare the minutes that the page shows."""
        is_shown = initial is not None and data == f"{timezone.localtime(initial):%Y-%m-%dT%H:%M}"
        return not is_shown and super().has_changed(initial, data)

    def validate(self, value: Any) -> None:
        super().validate(value)
        check_year(value)


class RightsForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The name, rights, IP addresses, dialect and expiry of a key."""

    scopes = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Leave empty to allow everything.",
    )
    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Leave empty to allow all models.",
    )
    allowed_ips = AllowedIPsField(widget=forms.Textarea({"rows": 3, "placeholder": EXAMPLE, "class": "code"}))
    default_dialect = forms.ChoiceField(
        label="Dialect",
        choices=[("", "the server's default"), *((name, name) for name in DIALECTS)],
        required=False,
        help_text="The form of the answers. The URL's prefix and the header X-ChatAPI-Dialect override it.",
    )

    class Meta:
        model = APIKey
        fields = ["name", "scopes", "allowed_models", "allowed_ips", "default_dialect", "expires_at"]
        field_classes = {"expires_at": ExpiryField}
        widgets = {"expires_at": forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")}

    def __init__(self, data: Any, console: Console, **kwargs: Any) -> None:
        super().__init__(data, **kwargs)
        self.fields["expires_at"].label = f"Expires ({console.organization.time_zone})"
        fields: Any = self.fields
        fields["expires_at"].kept = self.instance.expires_at
        fields["allowed_ips"].name_own_ip(console.client_ip)
        row, known = self.instance, model_names(console)
        # A key's own scopes and models stay choices: a list that lost its last one would allow everything.
        fields["scopes"].choices = [
            each
            for each in KeyScope.choices
            if row.is_admin or each[0] in row.scopes or each[0] not in _OF_ADMIN_KEYS
        ]
        fields["allowed_models"].choices = [(name, name) for name in known] + [
            (name, f"{name} (not offered now)") for name in row.allowed_models if name not in known
        ]


class KeyForm(OwnChangesForm, RightsForm):
    """The form of an existing key."""


class NewKeyForm(RightsForm):
    """A new key of one of the organization's projects, with its limits and its budget."""

    test_key = forms.BooleanField(
        required=False, label="Test key", help_text="Reaches only the sandbox engine, and is free."
    )
    requests_per_minute = forms.IntegerField(min_value=0, max_value=2**31 - 1, required=False)
    tokens_per_minute = forms.IntegerField(min_value=0, max_value=2**53, required=False)
    budget = USDField(label="Budget in USD", widget=forms.TextInput, required=False)
    period = forms.ChoiceField(label="Budget is for", choices=list(EACH_PERIOD.items()), required=False)

    class Meta(RightsForm.Meta):
        fields = ["project", *RightsForm.Meta.fields]

    field_order = ["project", "name", "test_key"]
    limits = ("requests_per_minute", "tokens_per_minute")

    def __init__(self, data: Any, console: Console, *, is_test: bool) -> None:
        initial = {"project": console.project, "name": "", "test_key": is_test}
        super().__init__(data, console, initial=initial)
        project: Any = self.fields["project"]
        project.queryset = Project.objects.filter(pk__in=[row.pk for row in console.projects_for_keys])
        project.label_from_instance = lambda row: row.name
        project.empty_label = None
        own_limits = {"accounts.add_ratelimit": self.limits, "usage.add_budgetlimit": ("budget", "period")}
        for permission, names in own_limits.items():
            if not console.may(permission):
                for name in names:
                    del self.fields[name]

    @property
    def limit_fields(self) -> list[BoundField]:
        """Return the fields of limits that the person may set."""
        return [self[name] for name in (*self.limits, "budget", "period") if name in self.fields]

    def clean(self) -> dict[str, Any]:
        """Set whether it is a test key, before its secret is made: the prefix says so."""
        self.instance.is_test = self.cleaned_data.get("test_key", False)
        return self.cleaned_data

    def issue(self) -> str:
        """Save the key with its limits, all or nothing; return its secret."""
        data = self.cleaned_data
        with transaction.atomic():
            secret = keys.issue(self.instance)
            numbers = {name: data.get(name) for name in self.limits}
            RateLimit(api_key=self.instance, **numbers).save_or_delete()
            key = LimitKey(Scope.API_KEY, self.instance.pk, data.get("period") or next(iter(EACH_PERIOD)))
            BudgetLimit.new(key, limit_nanodollars=data.get("budget")).save_or_delete()
        return secret
