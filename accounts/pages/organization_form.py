"""The form of an existing organization, in the admin and in the console."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from accounts import access
from accounts.models import Organization
from accounts.sign_in import attempts
from accounts.sign_in.form_limits import TooManyAttempts, check_attempts


class NamedOrganizationForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """An organization, whose new name must differ from all others by more than case."""

    person: Any = None
    """The person who changes the organization; the page sets it."""
    status = 400
    """The HTTP status of a page with errors."""

    def clean_name(self) -> str:
        """Raise `ValidationError` for a name that is taken; names could be tried out, so that is counted."""
        name: str = self.cleaned_data["name"]
        if "name" not in self.changed_data:
            return name
        try:
            if not access.is_operator(self.person):
                check_attempts(attempts.count_rename, self.person.pk)
        except TooManyAttempts as refusal:
            self.status = refusal.status
            raise
        if Organization.objects.filter(name__iexact=name).exclude(pk=self.instance.pk).exists():
            raise ValidationError("This name is taken.")
        return name
