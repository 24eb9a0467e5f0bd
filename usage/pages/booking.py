"""Pages that correct a charge, grant credit and refund credit, in three steps: form, preview, booking.

A preview is the booking itself in a transaction that is rolled back, so it shows the real effect, and refuses
what the booking would refuse.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounts import access
from accounts.audit import recorder
from accounts.audit.changes import Changes
from accounts.models import Organization
from accounts.pages.admin_site import admin_page
from usage.books import corrections, credit
from usage.books.credit import Booking
from usage.errors import NotBooked
from usage.formatting import usd
from usage.models import CHARGED, Credit, Generation, Kind, LedgerEntry
from usage.pages.booking_forms import BookingForm, CorrectionForm, CreditForm, is_used

PERMISSION = "usage.add_ledgerentry"
_ABOUT_CREDIT = "Credit limits nobody, unless “Prepaid only” is on: the page of the credit has the switch."
# The amounts that a booking changes, by name, in nanodollars.
Amounts = dict[str, int]


@dataclass(frozen=True, slots=True)
class BookingAction:
    """One booking: how to make it, the amounts that it moves, and the page that shows it afterwards."""

    verb: str
    book: Callable[[], Booking]
    amounts: Callable[[], Amounts]
    owed: frozenset[str]
    """The amounts that grow by the booked amount; the others, which are credit, shrink by it."""
    row: Callable[[], Model]
    """Reads the row that the audit log names."""
    url: str


@dataclass(frozen=True, slots=True)
class Effect:
    """An amount before and after."""

    name: str
    before: str
    after: str


# ---- the pages


@require_http_methods(["GET", "POST"])
@permission_required(PERMISSION, raise_exception=True)
def correct_page(request: HttpRequest, entry_id: int) -> HttpResponse:
    charges = LedgerEntry.objects.filter(kind__in=CHARGED)
    seen = access.seen_by(request.user, charges.select_related("organization", "project", "api_key"))
    entry = get_object_or_404(seen, pk=entry_id)
    assert entry.generation_id is not None, "what is charged names its request"
    charged = corrections.charged(entry.generation_id)
    # The whole amount: most corrections give it back.
    form = CorrectionForm(request.POST or None, initial={"amount": charged or None})
    context = {"title": "Correct a charge", "entry": entry, "charged": charged}
    return _page(request, form, context, lambda: _correcting(entry, form, request.user.get_username()))


@require_http_methods(["GET", "POST"])
@permission_required(PERMISSION, raise_exception=True)
def grant_page(request: HttpRequest) -> HttpResponse:
    return _credit_page(request, "Grant credit", "granted credit", credit.grant)


@require_http_methods(["GET", "POST"])
@permission_required(PERMISSION, raise_exception=True)
def refund_page(request: HttpRequest) -> HttpResponse:
    return _credit_page(request, "Refund credit", "refunded credit", credit.refund)


def _credit_page(request: HttpRequest, title: str, verb: str, book: Callable[..., Booking]) -> HttpResponse:
    form = CreditForm(request.POST or None, initial={"organization": request.GET.get("organization")})
    organizations = access.seen_by(request.user, Organization.objects.all())
    form.fields["organization"].queryset = organizations  # type: ignore[attr-defined]
    return _page(
        request,
        form,
        {"title": title, "submit": title.partition(" ")[0], "about": _ABOUT_CREDIT},
        lambda: _crediting(verb, book, form, request.user.get_username()),
    )


# ---- what they book


def _correcting(entry: LedgerEntry, form: CorrectionForm, recorded_by: str) -> BookingAction:
    generation_id = entry.generation_id
    assert generation_id is not None, "what is charged names its request"
    shows_balance = Credit.objects.filter(organization=entry.organization).exists()

    def amounts() -> Amounts:
        balance = credit.balance(entry.organization)
        found = {
            "Charge of this request": corrections.charged(generation_id),
            "Spent by the organization": balance.spent_nanodollars,
        }
        return found | ({"Balance of its credit": balance.nanodollars} if shows_balance else {})

    return BookingAction(
        verb="corrected",
        book=lambda: corrections.correct(entry.pk, form.amount_nanodollars, form.note(recorded_by)),
        amounts=amounts,
        owed=frozenset({"Charge of this request", "Spent by the organization"}),
        row=lambda: Generation.objects.get(pk=generation_id),
        url=reverse("admin:request", args=[entry.request_id]),
    )


def _crediting(verb: str, book: Callable[..., Booking], form: CreditForm, recorded_by: str) -> BookingAction:
    organization: Organization = form.cleaned_data["organization"]

    def amounts() -> Amounts:
        balance = credit.balance(organization)
        return {
            "Granted (net)": balance.credited_nanodollars,
            "Balance": balance.nanodollars,
            "Available for new requests": balance.available_nanodollars,
        }

    return BookingAction(
        verb=verb,
        book=lambda: book(organization, form.cleaned_data["amount"], form.note(recorded_by)),
        amounts=amounts,
        owed=frozenset(),
        row=lambda: Credit.objects.select_related("organization").get(pk=organization.pk),
        url=reverse("admin:usage_credit_change", args=[organization.pk]),
    )


# ---- form, preview, booking


def _page(
    request: HttpRequest, form: BookingForm, context: dict[str, Any], action_of: Callable[[], BookingAction]
) -> HttpResponse:
    step = request.POST.get("step")
    # Back to the form: the typed values become its initial ones, and are not validated yet.
    if step == "edit":
        form.is_bound, form.initial = False, request.POST.dict()
    elif form.is_valid():
        try:
            if step == "book":
                return _booked(request, action_of())
            _renew(form)
            context["effects"] = _preview(action_of())
            label = context.get("submit") or dict(CorrectionForm.DIRECTIONS)[form.cleaned_data["direction"]]
            context["book_label"] = f"{label} {usd(form.cleaned_data['amount'])}"
        except NotBooked as error:
            form.add_error(None, str(error))
    context["form"] = form
    return admin_page(request, "usage/booking.html", context)


def _booked(request: HttpRequest, action: BookingAction) -> HttpResponse:
    """Book and record it; a form that is sent again books nothing and leads to the same page."""
    with transaction.atomic():
        booking = action.book()
        if booking.is_new:
            # In the booking's transaction: there is no booking without its entry in the audit log.
            recorder.record(action.verb, action.row(), _changes(action, booking.entry), booking.entry.reason)
    entry = booking.entry
    booked = f"{entry.kind.capitalize()} of {usd(_as_typed(entry))}, ledger entry {entry.pk}"
    if booking.is_new:
        messages.success(request, f"Booked: {booked}.")
    else:
        messages.info(request, f"This was booked before: {booked}. Nothing is booked twice.")
    return redirect(action.url)


def _as_typed(entry: LedgerEntry) -> int:
    """Return the amount of a booking, with the sign that people expect: grants are negative in the ledger."""
    return entry.amount_nanodollars if entry.kind == Kind.CORRECTION else abs(entry.amount_nanodollars)


def _changes(action: BookingAction, entry: LedgerEntry) -> Changes:
    """Return what the booking moved, for the audit log."""
    # Amounts read before the booking may be stale: another booking can commit until this one has locked the
    # row. So they are computed from the amounts after it.
    by = entry.amount_nanodollars
    moved: Changes = {
        f"{name.lower()}_nanodollars": [amount - by if name in action.owed else amount + by, amount]
        for name, amount in action.amounts().items()
    }
    return moved | {"ledger_entry": [None, entry.pk]}


def _preview(action: BookingAction) -> list[Effect]:
    with transaction.atomic():
        before = action.amounts()
        action.book()
        after = action.amounts()
        # The booking was real until here, with its locks, so the effect that is shown is exact.
        transaction.set_rollback(True)
    return [Effect(name, usd(before[name]), usd(after[name])) for name in before]


def _renew(form: BookingForm) -> None:
    """Give a form that was booked a new token."""
    # A booked token books nothing again, but a preview after that is of another booking.
    if is_used(form):
        form.data = cast(QueryDict, form.data).copy()
        form.data["token"] = str(uuid4())
        form.full_clean()
