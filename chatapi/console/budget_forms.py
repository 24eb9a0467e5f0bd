"""The forms of a budget limit in the console, with the rules of the admin's."""

from typing import Any

from django import forms
from django.http import Http404

from accounts.models import APIKey, Project
from accounts.pages.admin_mixins import ConstrainedForm, OwnChangesForm
from chatapi.console.tenancy import Console
from usage.budget_words import EACH_PERIOD
from usage.models import BudgetLimit, Scope
from usage.models.budget_keys import LIMIT_PARTS, LimitKey
from usage.pages.filters import is_id
from usage.pages.forms import SOFT, USDField, check_is_new, check_some_limit


def _limit_field() -> USDField:
    return USDField(
        label="Limit in USD",
        widget=forms.TextInput,
        required=False,
        help_text="Requests that could exceed it are refused with the status 402.",
    )


def _soft_limit_field() -> USDField:
    return USDField(label="Warning in USD", widget=forms.TextInput, required=False, help_text=SOFT)


class AmountsForm(OwnChangesForm):
    """The amounts of an existing limit."""

    limit_nanodollars = _limit_field()
    soft_limit_nanodollars = _soft_limit_field()

    class Meta:
        model = BudgetLimit
        fields = ["limit_nanodollars", "soft_limit_nanodollars"]

    def clean(self) -> dict[str, Any]:
        check_some_limit(self.cleaned_data | self.kept())
        return self.cleaned_data


class OwnerForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The owner of a new limit: a project, each of its end users, or the key that the URL names."""

    project = forms.ModelChoiceField(Project.objects.none(), empty_label=None)
    each_end_user = forms.BooleanField(
        required=False,
        label="For each end user",
        help_text="The usual limit of a person: each end user of the project has it separately.",
    )

    def __init__(self, data: Any, console: Console, key: APIKey | None, **kwargs: Any) -> None:
        super().__init__(data, initial={"project": console.project}, **kwargs)
        self.key = key
        if key is not None:
            del self.fields["project"]
        else:
            field: Any = self.fields["project"]
            field.queryset = Project.objects.filter(pk__in=[row.pk for row in console.projects])
            field.label_from_instance = lambda row: row.name
        if key is not None or not any(row.counts_end_users for row in console.projects):
            del self.fields["each_end_user"]

    def clean(self) -> dict[str, Any]:
        """Refuse a limit for each end user if the project does not count its end users."""
        project = self.cleaned_data.get("project")
        if project and self.cleaned_data.get("each_end_user") and not project.counts_end_users:
            self.add_error("each_end_user", "This project does not count its end users: see Settings.")
        return self.cleaned_data


class BudgetForm(OwnerForm, ConstrainedForm):
    """A new limit of spending."""

    period = forms.ChoiceField(choices=list(EACH_PERIOD.items()))
    limit_nanodollars = _limit_field()
    soft_limit_nanodollars = _soft_limit_field()

    class Meta:
        model = BudgetLimit
        fields = [*LIMIT_PARTS, "limit_nanodollars", "soft_limit_nanodollars"]

    field_order = ["project", "each_end_user", *LIMIT_PARTS, "limit_nanodollars", "soft_limit_nanodollars"]

    def clean(self) -> dict[str, Any]:
        """Set the owner; refuse one that has a limit of this period already."""
        data = super().clean()
        owner = self.key or data.get("project")
        if owner is None or self.errors:
            return data
        check_some_limit(data)
        scope = Scope.PROJECT_END_USERS if data.get("each_end_user") else Scope.PROJECT
        self.instance.scope = Scope.API_KEY if self.key else scope
        self.instance.scope_id = owner.pk
        check_is_new(LimitKey.of_owner(self.instance.scope, owner.pk, data))
        return data


def key_of(console: Console, key_id: str) -> APIKey | None:
    """Return the organization's key with this id, for the form of a limit of a key; None without an id.

    Raises `Http404` if there is no such key.
    """
    if not key_id:
        return None
    rows = console.rows(APIKey.objects.select_related("project"))
    key = rows.filter(pk=int(key_id)).first() if is_id(key_id) else None
    if key is None:
        raise Http404("There is no such key.")
    return key
