"""The forms in which people book corrections, grants and refunds: an amount, a reason, and a token by which pressing twice books once."""

from typing import Any
from uuid import uuid4

from django import forms
from django.core.exceptions import ValidationError

from accounts.models import Organization
from usage.credit import Note
from usage.models import LedgerEntry
from usage.pages.forms import USDField


class BookingForm(forms.Form):
    """What every booking asks for."""

    amount = USDField(label="Amount (USD)", widget=forms.TextInput, help_text="US dollars, such as 2.50.")
    reason = forms.CharField(
        label="Reason",
        max_length=LedgerEntry._meta.get_field("reason").max_length,
        help_text="Why, for whoever reads the ledger in a year; the organization's people can. It can't be changed later.",
    )
    token = forms.UUIDField(widget=forms.HiddenInput, initial=uuid4)

    def clean_amount(self) -> int:
        """More than nothing; which way it goes is said in words."""
        amount: int = self.cleaned_data["amount"]
        if amount <= 0:
            raise ValidationError("Give an amount that is more than nothing.")
        return amount

    def note(self, recorded_by: str) -> Note:
        """The reason, who books it, and what must not be booked twice: this form."""
        return Note(self.cleaned_data["reason"], recorded_by, f"form-{self.cleaned_data['token']}")


class CorrectionForm(BookingForm):
    """By how much a charge is changed."""

    direction = forms.ChoiceField(
        label="What to do", choices=[("back", "Give back"), ("more", "Charge more")], initial="back", widget=forms.RadioSelect
    )
    field_order = ["direction", "amount", "reason", "token"]

    @property
    def amount_nanodollars(self) -> int:
        """What the organization owes more by it."""
        amount: int = self.cleaned_data["amount"]
        return -amount if self.cleaned_data["direction"] == "back" else amount


class CreditForm(BookingForm):
    """Whose credit is moved, and by how much."""

    organization = forms.ModelChoiceField(Organization.objects.all(), empty_label="Choose one")
    reference = forms.CharField(
        required=False,
        max_length=LedgerEntry._meta.get_field("reference").max_length,
        help_text="Such as a payment's id: what has it is never booked twice, by whomever. May be empty.",
    )
    field_order = ["organization", "amount", "reason", "reference", "token"]

    def clean_reference(self) -> str:
        """Ours begin with this, and stand for another form."""
        reference = str(self.cleaned_data["reference"])
        if reference.startswith("form-"):
            raise ValidationError("A reference can't begin with form-.")
        return reference

    def note(self, recorded_by: str) -> Note:
        """With the reference, if there is one."""
        note = super().note(recorded_by)
        return Note(note.reason, note.recorded_by, self.cleaned_data["reference"] or note.reference)


def is_used(form: BookingForm) -> bool:
    """Whether this very form was booked before."""
    token: Any = form.cleaned_data["token"]
    return LedgerEntry.objects.filter(reference=f"form-{token}").exists()
