"""Prepaid credit: the balance, a payment at Stripe, and the earlier payments. Without Stripe, the operator's
grants and refunds.
"""

import logging
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from chatapi.console.tenancy import Console, page, render
from usage.books import credit
from usage.errors import NotBooked, StripeRefused, StripeUnavailable
from usage.formatting import usd
from usage.models import BOOKED, OWED_SIGNS, LedgerEntry
from usage.pages.forms import USDField
from usage.payment import configuration, metered_usage, payments
from usage.payment.models import Payment
from usage.payment.payments import LEAST_CENTS, MOST_CENTS, NANODOLLARS_PER_CENT, PRESETS_CENTS
from usage.statements.document import CREDIT

Row = TypeVar("Row", Payment, LedgerEntry)
log = logging.getLogger(__name__)

PAGE = 50
_LEAST, _MOST = (usd(cents * NANODOLLARS_PER_CENT) for cents in (LEAST_CENTS, MOST_CENTS))


class AmountForm(forms.Form):
    """The amount of a payment: that of a button, or another one."""

    preset = USDField(required=False, widget=forms.TextInput)
    amount = USDField(
        label="Another amount in USD",
        widget=forms.TextInput,
        required=False,
        help_text=f"{_LEAST} to {_MOST}, in whole cents.",
    )

    def clean(self) -> dict[str, Any]:
        """Add the cents; refuse an amount that is out of bounds, or not of whole cents."""
        chosen = self.cleaned_data.get("preset") or self.cleaned_data.get("amount")
        cents, rest = divmod(chosen or 0, NANODOLLARS_PER_CENT)
        if not self.errors and (rest or not LEAST_CENTS <= cents <= MOST_CENTS):
            self.add_error("amount", f"Pay {_LEAST} to {_MOST}, in whole cents.")
        return self.cleaned_data | {"cents": cents}


@require_http_methods(["GET", "HEAD", "POST"])
@page("payment.view_payment")
def credit_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the balance and the payments, and redirect a new payment to Stripe; without Stripe, show the
    operator's grants and refunds.
    """
    if not configuration.is_on():
        return _granted(request, console)
    context: dict[str, Any] = {"title": "Credit", "form": AmountForm()}
    status = 200
    if request.method == "POST":
        form = AmountForm(request.POST)
        if not console.may("payment.add_payment"):
            raise PermissionDenied
        if form.is_valid() and (url := _begin(request, console, form.cleaned_data["cents"], context)):
            return redirect(url)
        context["form"], status = form, context.pop("status", 400)
    response = render(request, console, "credit.html", context | _shown(request, console), status)
    # Browsers apply the policy of a form's page to the redirect that answers the form, too.
    response._csp_update = {"form-action": [configuration.checkout_origin()]}  # type: ignore[attr-defined]
    return response


def _begin(request: HttpRequest, console: Console, cents: int, context: dict[str, Any]) -> str | None:
    """Begin a payment and return the URL at which to pay; without one, put the reason into the context."""
    return_url = request.build_absolute_uri(console.url("credit"))
    try:
        if metered_usage.is_billed(console.organization):
            raise NotBooked("Stripe bills the usage of this organization: it pays nothing in advance.")
        return payments.begin(console.organization, cents, str(console.person), return_url)
    except NotBooked as error:
        context |= {"mistake": str(error), "status": 409}
    except (StripeUnavailable, StripeRefused) as error:
        log.error("a payment can't begin: %s", error)
        context |= {
            "mistake": "Stripe can't take the payment now. Nothing was paid: try again later.",
            "status": 503,
        }
    return None


def _granted(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the balance and the operator's grants and refunds, without a form."""
    if request.method == "POST" or not console.has_credit:
        raise Http404("Payments are not set up.")
    booked = LedgerEntry.objects.filter(BOOKED, kind__in=[*OWED_SIGNS])
    rows, pages = _paged(request, console, console.rows(booked))
    context = {
        "title": "Credit",
        "balance": credit.balance(console.organization),
        # The ledger's amounts are what the organization owes, so a grant is negative there.
        "rows": [(row, CREDIT[row.kind].word, -row.amount_nanodollars) for row in rows],
    }
    return render(request, console, "granted_credit.html", context | pages)


def _shown(request: HttpRequest, console: Console) -> dict[str, Any]:
    """Return the balance and a page of the payments, newest first."""
    own = console.rows(Payment.objects.exclude(session_id=""))
    # Before the others: a payment that is said to be booked is then in the balance and in the list, too.
    returned = _find(own, request.GET.get("payment", ""))
    rows, pages = _paged(request, console, own)
    return pages | {
        "balance": credit.balance(console.organization),
        "is_billed": metered_usage.is_billed(console.organization),
        "presets": [f"{cents // 100}" for cents in PRESETS_CENTS],
        "rows": [(row, row.amount_cents * NANODOLLARS_PER_CENT) for row in rows],
        "returned": returned,
    }


def _paged(request: HttpRequest, console: Console, own: "QuerySet[Row]") -> tuple[list[Row], dict[str, str]]:
    """Return the rows after the one that the URL names, newest first, and the URLs of other pages."""
    rows = own
    if "after" in request.GET:
        last = _find(own, request.GET["after"])
        if last is None:
            raise Http404("There is no such row.")
        rows = own.filter(Q(created_at__lt=last.created_at) | Q(created_at=last.created_at, pk__lt=last.pk))
    # One row more than is shown tells whether there is an older page.
    found = list(rows.order_by("-created_at", "-pk")[: PAGE + 1])
    return found[:PAGE], {
        "older_url": console.url("credit", after=found[PAGE - 1].pk) if len(found) > PAGE else "",
        "newest_url": console.url("credit") if "after" in request.GET else "",
    }


def _find(own: "QuerySet[Row]", row_id: str) -> Row | None:
    try:
        return own.filter(pk=own.model._meta.pk.to_python(row_id)).first()
    except ValidationError:
        return None
