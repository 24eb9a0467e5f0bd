"""Form fields of amounts in US dollars, and the forms of budget limits."""

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from accounts.models import APIKey, Organization, Project
from accounts.pages.admin_mixins import RowSelect
from usage import pricing
from usage.models import BudgetLimit, Generation, Scope

SOFT = "Only a warning: requests still pass."


class USDField(forms.CharField):
    """An amount of US dollars; its value is an integer of nanodollars."""

    def __init__(self, *, widget: type[forms.TextInput] = UnfoldAdminTextInputWidget, **kwargs: Any) -> None:
        super().__init__(
            widget=widget(attrs={"inputmode": "decimal", "placeholder": "0.00", "autocomplete": "off"}),
            **kwargs,
        )

    def to_python(self, value: Any) -> Any:
        """Return nanodollars; raises `ValidationError` for text that is not an amount."""
        text = super().to_python(value)
        if not text:
            return None
        if len(text) > 40:
            raise ValidationError("This is too long for an amount.")
        try:
            return pricing.from_usd(text.removeprefix("$"))
        except ValueError as error:
            raise ValidationError(str(error)) from error

    def prepare_value(self, value: Any) -> Any:
        """Return nanodollars from the database as dollars, and text as it was typed."""
        return pricing.to_usd(value) if isinstance(value, int) else value


def _row_field(model: type[Any], field: str, label: str) -> "forms.ModelChoiceField[Any]":
    # The widget searches through a foreign key; a generation has one to each of the three.
    widget = RowSelect(Generation._meta.get_field(field), admin.site)
    return forms.ModelChoiceField(model.objects.all(), required=False, widget=widget, label=label)


def _check_some_limit(data: dict[str, Any]) -> None:
    """Raise `ValidationError` without a limit. An amount that can't be read has its own error."""
    if all(data.get(name, "unread") is None for name in ("limit_nanodollars", "soft_limit_nanodollars")):
        raise ValidationError("Enter a limit, a soft limit or both.")


class NewLimitForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A limit for one organization, project or key."""

    organization = _row_field(Organization, "organization", "Organization")
    project = _row_field(Project, "project", "Project")
    api_key = _row_field(APIKey, "api_key", "API key")
    period = forms.ChoiceField(
        choices=[("day", "Day"), ("month", "Month"), ("ever", "Total, no period")],
        widget=UnfoldAdminSelectWidget,
    )
    limit_nanodollars = USDField(label="Limit (USD)", required=False)
    soft_limit_nanodollars = USDField(label="Soft limit (USD)", required=False, help_text=SOFT)

    class Meta:
        model = BudgetLimit
        fields = [
            "organization",
            "project",
            "api_key",
            "period",
            "limit_nanodollars",
            "soft_limit_nanodollars",
        ]

    def clean(self) -> dict[str, Any]:
        """Raise `ValidationError` unless exactly one of the three is limited, and has no limit of this period
        yet.
        """
        data = self.cleaned_data
        _check_some_limit(data)
        scopes = {
            Scope.ORGANIZATION: data.get("organization"),
            Scope.PROJECT: data.get("project"),
            Scope.API_KEY: data.get("api_key"),
        }
        chosen = [(scope, row.pk) for scope, row in scopes.items() if row is not None]
        if len(chosen) != 1:
            raise ValidationError("Choose one: an organization, a project or an API key.")
        self.instance.scope, self.instance.scope_id = chosen[0]
        if BudgetLimit.objects.filter(
            scope=chosen[0][0], scope_id=chosen[0][1], period=data.get("period")
        ).exists():
            raise ValidationError("There is a limit for this period already: change that one.")
        return data


class LimitForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The amounts of an existing limit."""

    limit_nanodollars = USDField(label="Limit (USD)", required=False)
    soft_limit_nanodollars = USDField(label="Soft limit (USD)", required=False, help_text=SOFT)

    class Meta:
        model = BudgetLimit
        fields = ["limit_nanodollars", "soft_limit_nanodollars"]

    def clean(self) -> dict[str, Any]:
        _check_some_limit(self.cleaned_data)
        return self.cleaned_data
