"""The forms of corrections, grants and refunds; each has a token, so that pressing twice books once."""

from typing import Any
from uuid import uuid4

from django import forms
from django.core.exceptions import ValidationError
from django.urls import reverse_lazy
from django.utils.text import format_lazy

from accounts.models import Organization
from usage.books.credit import Note
from usage.models import LedgerEntry
from usage.pages.filters import is_id
from usage.pages.forms import USDField

# The admin's search through a foreign key, which offers only what the person sees.
_SEARCH = format_lazy(
    "{}?app_label=usage&model_name=credit&field_name=organization", reverse_lazy("admin:autocomplete")
)


class BookingForm(forms.Form):
    """The fields of every booking."""

    amount = USDField(label="Amount (USD)", widget=forms.TextInput, help_text="US dollars, such as 2.50.")
    reason = forms.CharField(
        label="Reason",
        max_length=LedgerEntry._meta.get_field("reason").max_length,
        help_text="The organization sees this. It can't be changed.",
    )
    token = forms.UUIDField(widget=forms.HiddenInput, initial=uuid4)

    def clean_amount(self) -> int:
        """Raise `ValidationError` unless it is more than zero; the direction has its own field."""
        amount: int = self.cleaned_data["amount"]
        if amount <= 0:
            raise ValidationError("Enter an amount greater than 0.")
        return amount

    def note(self, recorded_by: str) -> Note:
        """Return the reason, the person, and a reference by which this form is booked at most once."""
        return Note(self.cleaned_data["reason"], recorded_by, f"form-{self.cleaned_data['token']}")


class CorrectionForm(BookingForm):
    """The amount by which a charge changes."""

    DIRECTIONS = (("back", "Refund"), ("more", "Extra charge"))
    direction = forms.ChoiceField(
        label="Correction", choices=DIRECTIONS, initial="back", widget=forms.RadioSelect
    )
    field_order = ["direction", "amount", "reason", "token"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["amount"].help_text = "US dollars. What is filled in is the whole amount."

    @property
    def amount_nanodollars(self) -> int:
        """Return the amount that the organization owes because of it."""
        amount: int = self.cleaned_data["amount"]
        return -amount if self.cleaned_data["direction"] == "back" else amount


class OrganizationField(forms.ModelChoiceField):  # type: ignore[type-arg]  # not generic at run time
    """An organization by its exact name or its id; a script suggests names."""

    # No list of options: there may be thousands of organizations, and only this one is read.
    widget = forms.TextInput

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Organization.objects.all(), **kwargs)
        self.error_messages["invalid_choice"] = "No organization has this name or id."
        self.widget.attrs |= {"autocomplete": "off", "data-suggest": _SEARCH}

    def to_python(self, value: Any) -> Organization | None:
        """Return the organization; raises `ValidationError` if the person sees none of this name or id."""
        text = "" if value is None else str(value).strip()
        if not text:
            return None
        found = self._find(text)
        if found is None:
            raise ValidationError(self.error_messages["invalid_choice"], code="invalid_choice")
        return found

    def prepare_value(self, value: Any) -> Any:
        """Return the name of an organization of which a URL or a form has the id."""
        found = self._find(str(value)) if value else None
        return found.name if found else value

    def _find(self, text: str) -> Organization | None:
        rows = self.queryset
        assert rows is not None, "it was made with one"
        if "\x00" in text:
            return None
        # A name can be a number, so names come first.
        return rows.filter(name=text).first() or (rows.filter(pk=text).first() if is_id(text) else None)


class CreditForm(BookingForm):
    """The organization whose credit is moved, and the amount."""

    organization = OrganizationField(help_text="Name or id; names are suggested while you type.")
    reference = forms.CharField(
        required=False,
        max_length=LedgerEntry._meta.get_field("reference").max_length,
        help_text="For example a payment's id. The same reference is never booked twice.",
    )
    field_order = ["organization", "amount", "reason", "reference", "token"]

    def clean_reference(self) -> str:
        """Raise `ValidationError` for the prefix of our own references, which stand for forms."""
        reference = str(self.cleaned_data["reference"])
        if reference.startswith("form-"):
            raise ValidationError("A reference can't begin with form-.")
        return reference

    def note(self, recorded_by: str) -> Note:
        note = super().note(recorded_by)
        return Note(note.reason, note.recorded_by, self.cleaned_data["reference"] or note.reference)


def is_used(form: BookingForm) -> bool:
    token: Any = form.cleaned_data["token"]
    return LedgerEntry.objects.filter(reference=f"form-{token}").exists()
