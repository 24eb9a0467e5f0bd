"""The forms of the pages about API keys."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts import access, roles
from accounts.models import APIKey, KeyScope
from accounts.pages.admin_mixins import OwnChangesForm, check_year
from accounts.pages.allowed_ips_field import EXAMPLE, AllowedIPsField
from chatapi.catalog import sandbox_last
from chatapi.models import ServedModel
from chatapi.wire.dialects import DIALECTS

# The texts of the times for which the old secret works after a rotation, by seconds.
OVERLAPS = {
    "0": "now",
    "3600": "in 1 hour",
    "86400": "in 24 hours",
    "259200": "in 3 days",
    "604800": "in 7 days",
}

# The message after a rotation with a form that is out of date.
KEY_CHANGED = (
    "Nothing was changed: since this form was opened, the key was rotated or revoked. If you rotated it "
    "yourself and saw no new secret, rotate it again."
)

NOTHING_TO_ROTATE = "This key has no secret: programs exchange their own tokens for access tokens of it."


class RightsForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The name, rights, IP addresses, dialect and expiry of a key."""

    scopes = forms.MultipleChoiceField(
        choices=KeyScope.choices,
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="Leave empty to allow everything.",
    )
    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="Leave empty to allow all models.",
    )
    allowed_ips = AllowedIPsField(widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "placeholder": EXAMPLE}))
    default_dialect = forms.ChoiceField(
        choices=[("", "The server's default"), *((name, name) for name in DIALECTS)],
        required=False,
        widget=UnfoldAdminSelectWidget,
        help_text=APIKey._meta.get_field("default_dialect").help_text,
    )

    person: access.Person
    """The person who fills in the form."""
    client_ip: str | None
    """The IP from which the person does so, if it is known."""

    class Meta:
        model = APIKey
        fields = ["name", "scopes", "allowed_models", "allowed_ips", "is_admin", "manages_as"]
        fields += ["default_dialect", "expires_at"]
        labels = {
            "is_admin": "Can read the organization's usage",
            "manages_as": "Manages the organization as",
        }
        help_texts = {
            "is_admin": "With /v1/organization/usage/completions and /v1/organization/costs.",
            "manages_as": "A live admin key with a role may do what a member of that role may, with "
            "/v1/organization/projects and the other management routes.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields.get("allowed_models")  # people who may only view have no fields
        if field is not None:
            field.choices = model_choices(self.instance.allowed_models)  # type: ignore[attr-defined]
            self.fields["allowed_ips"].name_own_ip(self.client_ip)  # type: ignore[attr-defined]

    def clean_expires_at(self) -> datetime | None:
        expires_at: datetime | None = self.cleaned_data["expires_at"]
        check_year(expires_at)
        return expires_at

    def clean_is_admin(self) -> bool:
        """Raise `ValidationError` for an admin key if the person may not make one in this organization."""
        is_admin: bool = self.cleaned_data["is_admin"]
        project = self.cleaned_data.get("project") or (self.instance.project if self.instance.pk else None)
        if (
            is_admin
            and project is not None
            and not access.may_make_admin_keys(self.person, project.organization_id)
        ):
            raise ValidationError("Only owners and admins of the organization can make an admin key.")
        return is_admin

    def clean_manages_as(self) -> str:
        """Raise `ValidationError` for a role above the person's own."""
        role: str = self.cleaned_data["manages_as"]
        project = self.cleaned_data.get("project") or (self.instance.project if self.instance.pk else None)
        if role and project is not None:
            own = access.role_in(self.person, project.organization_id)
            if not self.cleaned_data.get("is_admin"):
                raise ValidationError("Only an admin key can have a role.")
            if roles.is_above(role, own):
                raise ValidationError("You can't give a key a role above your own.")
        return role


class KeyForm(OwnChangesForm, RightsForm):
    """The form of an existing key."""


class NewKeyForm(RightsForm):
    """A new key, with its project and kind, which never change."""

    test_key = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Works with the sandbox engine only, and is free.",
    )

    class Meta(RightsForm.Meta):
        fields = ["project", *RightsForm.Meta.fields]

    def clean(self) -> dict[str, Any]:
        """Set whether it is a test key, before the secret is made: the prefix says so."""
        self.instance.is_test = self.cleaned_data.get("test_key", False)
        return self.cleaned_data


class RotationForm(forms.Form):
    """The time when the current secret of a key stops working."""

    public = forms.CharField(widget=forms.HiddenInput)
    """The public part of the current secret: a form that is sent twice must not replace the new one."""
    overlap = forms.ChoiceField(
        choices=list(OVERLAPS.items()), initial="86400", label="The old secret stops working"
    )
    until = forms.DateTimeField(
        required=False,
        label="or at this time (UTC)",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )

    def clean_until(self) -> datetime | None:
        until: datetime | None = self.cleaned_data["until"]
        check_year(until)
        if until is not None and until <= timezone.now():
            raise ValidationError("This time has passed. Choose a later one, or “now”.")
        return until

    @property
    def previous_until(self) -> datetime | None:
        """Return when the old secret stops working, of a valid form; None means now."""
        until: datetime | None = self.cleaned_data["until"]
        if until is not None:
            return until
        overlap_s = int(self.cleaned_data["overlap"])
        return timezone.now() + timedelta(seconds=overlap_s) if overlap_s else None


def model_choices(chosen: list[str]) -> list[tuple[str, str]]:
    """Return choices: all models, and those chosen ones that the catalog no longer has."""
    # Without the latter, saving a form could empty a list, and let a key use, or a limit cover, all models.
    known = list(ServedModel.objects.order_by(*sandbox_last()).values_list("id", flat=True))
    return [(name, name) for name in known] + [
        (name, f"{name} (not in the catalog)") for name in chosen if name not in known
    ]
