"""The package's forms with passwords, with labels like those of all forms, and without placeholders."""

from typing import Any

from allauth.account.forms import ChangePasswordForm, ReauthenticateForm, SetPasswordForm
from django.forms import BaseForm


class ChangeForm(ChangePasswordForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _label(self, ["Current password", "New password", "New password again"])


class SetForm(SetPasswordForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _label(self, ["Password", "Password again"])


class AgainForm(ReauthenticateForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _label(self, ["Password"])


def _label(form: BaseForm, labels: list[str]) -> None:
    for field, label in zip(form.fields.values(), labels, strict=True):
        field.label = label
        field.widget.attrs.pop("placeholder", None)
