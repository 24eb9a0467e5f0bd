"""Form fields of amounts in US dollars and of percent, and the forms of budget limits and discounts."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from accounts import end_users
from accounts.models import APIKey, EndUser, Organization, Project
from accounts.pages.admin_mixins import OwnChangesForm, RowSelect, check_year
from usage import pricing
from usage.books import prices
from usage.models import BudgetLimit, Discount, Generation, Scope
from usage.models.budget_keys import LIMIT_PARTS, LimitKey

SOFT = "Only a warning: requests still pass."
END_USERS = (
    "End users are the people whom requests name in “safety_identifier” or “user”. Leave both fields empty "
    "to limit the organization, project or key as a whole."
)
EACH = (
    "The usual limit of a person: each end user of the organization or project above has it separately. "
    "A project's comes before its organization's. Only projects with the switch “Counts end users” apply it."
)


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


class PercentField(forms.DecimalField):
    """A part of a whole in percent; its value is an integer of basis points."""

    def __init__(self, **kwargs: Any) -> None:
        widget = UnfoldAdminTextInputWidget(
            attrs={"inputmode": "decimal", "placeholder": "12.5", "autocomplete": "off"}
        )
        super().__init__(min_value=0, max_value=100, decimal_places=2, widget=widget, **kwargs)

    def to_python(self, value: Any) -> Any:
        text = str(value or "").removesuffix("%")
        if "_" in text or not text.isascii():  # Python's numbers may have underscores, and other digits
            raise ValidationError(self.error_messages["invalid"], code="invalid")
        return super().to_python(text)

    def clean(self, value: Any) -> Any:
        """Return basis points; raises `ValidationError` for text that is not a percentage."""
        percent = super().clean(value)
        return None if percent is None else int(percent * 100)


def _row_field(model: type[Any], field: str, label: str) -> "forms.ModelChoiceField[Any]":
    # The widget searches through a foreign key; a generation has one to each of the three.
    widget = RowSelect(Generation._meta.get_field(field), admin.site)
    return forms.ModelChoiceField(model.objects.all(), required=False, widget=widget, label=label)


def end_user_field() -> forms.CharField:
    return forms.CharField(
        required=False,
        label="For one end user",
        max_length=512,
        widget=UnfoldAdminTextInputWidget,
        help_text="An exception for one person of the project above: the name as requests send it, such as "
        "customer-4711. It replaces the usual limit of a person.",
    )


def named_end_user(project: Project | None, name: str | None, *, is_each: bool | None) -> EndUser | None:
    """Return the end user that the form names, whose row may be new; None if it names none.

    Raises `ValidationError` for a name without its project, and for a project that does not count end users.
    """
    if project is not None and (name or is_each) and not project.counts_end_users:
        raise ValidationError(
            "This project does not count its end users. Turn on “Counts end users” on its page first."
        )
    if not name:
        return None
    if project is None or is_each:
        raise ValidationError("For one end user, choose the project, and turn “For each end user” off.")
    stored = end_users.stored_name(name, is_hashed=project.hashes_end_users)
    # The row is made before the first request of that person, so that a limit can name it.
    return EndUser.objects.get_or_create(project=project, name=stored)[0]


def check_some_limit(data: dict[str, Any]) -> None:
    """Raise `ValidationError` without a limit. An amount that can't be read has its own error."""
    if all(data.get(name, "unread") is None for name in ("limit_nanodollars", "soft_limit_nanodollars")):
        raise ValidationError("Enter at least one of the two amounts.")


def check_is_new(key: LimitKey) -> None:
    """Raise `ValidationError` if the owner has a limit for this period."""
    if BudgetLimit.rows(key).exists():
        raise ValidationError("There is a limit for this period already: change that one.")


class NewLimitForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A limit for one organization, project or key; or for each end user, or one, of the chosen."""

    organization = _row_field(Organization, "organization", "Organization")
    project = _row_field(Project, "project", "Project")
    api_key = _row_field(APIKey, "api_key", "API key")
    each_end_user = forms.BooleanField(
        required=False, label="For each end user", widget=UnfoldBooleanSwitchWidget, help_text=EACH
    )
    end_user = end_user_field()
    period = forms.ChoiceField(
        choices=[("month", "Month"), ("week", "Week"), ("day", "Day"), ("ever", "Total, no period")],
        widget=UnfoldAdminSelectWidget,
    )
    limit_nanodollars = USDField(label="Limit (USD)", required=False)
    soft_limit_nanodollars = USDField(label="Soft limit (USD)", required=False, help_text=SOFT)

    class Meta:
        model = BudgetLimit
        fields = [
            "organization", "project", "api_key", "each_end_user", "end_user", *LIMIT_PARTS,
            "limit_nanodollars", "soft_limit_nanodollars",
        ]  # fmt: skip

    def clean(self) -> dict[str, Any]:
        """Raise `ValidationError` unless exactly one of the three is limited, and not yet."""
        data = self.cleaned_data
        check_some_limit(data)
        scopes = {
            Scope.ORGANIZATION: data.get("organization"),
            Scope.PROJECT: data.get("project"),
            Scope.API_KEY: data.get("api_key"),
        }
        chosen = [(scope, row.pk) for scope, row in scopes.items() if row is not None]
        if len(chosen) != 1:
            raise ValidationError("Choose one: an organization, a project or an API key.")
        scope, scope_id = self._of_end_users(*chosen[0])
        self.instance.scope, self.instance.scope_id = scope, scope_id
        check_is_new(LimitKey.of_owner(scope, scope_id, data))
        return data

    def _of_end_users(self, scope: Scope, scope_id: int) -> tuple[Scope, int]:
        """Return the end users that are meant, or the chosen owner; raises `ValidationError`."""
        data = self.cleaned_data
        is_each = data.get("each_end_user")
        if person := named_end_user(data.get("project"), data.get("end_user"), is_each=is_each):
            return Scope.END_USER, person.pk
        if is_each and scope == Scope.API_KEY:
            raise ValidationError({"each_end_user": "Choose an organization or a project."})
        return (_EACH[scope] if is_each else scope), scope_id


_EACH = {Scope.ORGANIZATION: Scope.ORGANIZATION_END_USERS, Scope.PROJECT: Scope.PROJECT_END_USERS}


class LimitForm(OwnChangesForm):
    """The amounts of an existing limit."""

    limit_nanodollars = USDField(label="Limit (USD)", required=False)
    soft_limit_nanodollars = USDField(label="Soft limit (USD)", required=False, help_text=SOFT)

    class Meta:
        model = BudgetLimit
        fields = ["limit_nanodollars", "soft_limit_nanodollars"]

    def clean(self) -> dict[str, Any]:
        check_some_limit(self.cleaned_data | self.kept())
        return self.cleaned_data


class DiscountForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A discount of an organization from a moment on."""

    basis_points = PercentField(label="Discount in percent", help_text="Such as 12.5. 0 ends a discount.")

    class Meta:
        model = Discount
        fields = ["organization", "effective_from", "basis_points"]

    def clean_effective_from(self) -> datetime:
        moment: datetime = self.cleaned_data["effective_from"]
        check_year(moment)
        return moment

    def clean(self) -> dict[str, Any]:
        """Refuse a discount that changes nothing."""
        data = self.cleaned_data
        if not self.errors and not prices.is_discount_change(Discount(**data)):
            percent = f"{data['basis_points'] / 100:g} %"
            raise ValidationError(f"The organization's discount is {percent} at that time already.")
        return data
