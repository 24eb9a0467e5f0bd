"""The admin's pages of payments: the request, Stripe's answer, and the ledger's entries."""

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from accounts import access
from accounts.audit import recorder
from accounts.pages.admin_mixins import ListAdmin, ReadOnlyAdmin
from accounts.pages.tenant_admin import TenantAdmin
from usage.formatting import moment, usd
from usage.models import LedgerEntry
from usage.pages.columns import time_column
from usage.payment import configuration, payments
from usage.payment.models import Payment, State
from usage.payment.payments import NANODOLLARS_PER_CENT

# Entries of one payment that its page shows: each refund and dispute adds one.
MAX_ENTRIES = 50
_DASHBOARD = "https://dashboard.stripe.com"


def dashboard_url(row: Payment) -> str:
    """Return the URL of the payment in Stripe's dashboard; empty if Stripe never heard of it."""
    mode = "/test" if row.session_id.startswith("cs_test_") else ""
    if row.payment_intent:
        return f"{_DASHBOARD}{mode}/payments/{row.payment_intent}"
    return f"{_DASHBOARD}{mode}/search?query={row.session_id}" if row.session_id else ""


def explanation(row: Payment) -> str:
    """Return what happened to the payment, and what an operator can do about it."""
    right_cents = max(row.amount_cents - row.returned_cents, 0)
    if row.state == State.REFUSED:
        return (
            "Not booked: organization, currency or amount at Stripe are not what was asked for. "
            "Refund it at Stripe."
        )
    if row.state == State.EXPIRED:
        return "Stripe's page ended without a payment. Nothing was charged."
    if row.state == State.OPEN and not row.session_id:
        return "Stripe's page was never made, so nobody can have paid."
    if row.state == State.OPEN:
        return "Stripe has not said yet that it was paid. If it is paid in its dashboard, ask Stripe now."
    if missing := right_cents - row.booked_cents:
        what = "of it is not booked yet" if missing > 0 else "was given back and is still in the credit"
        said = f"Paid, but {_dollars(abs(missing))} {what}."
        return f"{said} The reaper's log says why; it tries again by itself."
    return "Paid, and the ledger agrees with Stripe."


def _dollars(cents: int) -> str:
    return usd(cents * NANODOLLARS_PER_CENT)


@admin.register(Payment)
class PaymentAdmin(TenantAdmin, ReadOnlyAdmin, ListAdmin):
    """Payments at Stripe, newest first. Only operators see what leads to Stripe's dashboard."""

    nothing_yet = "Nobody has paid at Stripe yet."
    change_form_outer_before_template = "usage/payment.html"
    list_display = ["begun", "organization", "amount", "state_badge", "in_ledger", "returned", "requested_by"]
    list_display_links = ["begun"]
    number_columns = ("amount", "in_ledger", "returned")
    list_filter = ["state", "organization", "created_at"]
    list_select_related = ["organization"]
    search_fields = ["organization__name", "requested_by", "session_id", "payment_intent"]
    search_help_text = "Search by organization, payer, or an id: of the payment, or Stripe's (pi_…, cs_…)."
    ordering = ["-created_at", "-pk"]
    paginator = InfinitePaginator
    show_facets = admin.ShowFacets.NEVER
    fields = [
        "begun", "id", "organization", "amount", "state", "in_ledger", "returned", "requested_by",
        "receipt", "at_stripe", "session_id", "payment_intent", "looks",
    ]  # fmt: skip
    readonly_fields = [name for name in fields if name not in ("organization", "requested_by")]
    begun = time_column("Begun", "created_at", ordering="created_at")
    operators_fields = ("at_stripe", "session_id", "payment_intent", "looks")

    class Media:
        css = {"all": ["usage/operator.css"]}

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.ask))
        return [path("<path:object_id>/ask/", view, name="payment_payment_ask"), *super().get_urls()]

    def ask(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Have a reaper ask Stripe about the payment, as a webhook does."""
        row: Payment | None = self.get_object(request, object_id)
        if not access.is_operator(request.user) or not self.has_view_permission(request):
            raise PermissionDenied
        if row is None:
            raise Http404("There is no such payment.")
        if configuration.is_on() and row.session_id:
            payments.look_now(row)
            recorder.record("asked Stripe", row, {})
            messages.success(request, "Stripe is asked within seconds. Reload this page to see what it says.")
        else:
            messages.error(request, "Stripe can't be asked: payments are not set up, or it has no such page.")
        return redirect("admin:payment_payment_change", row.pk)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Payment], search_term: str
    ) -> tuple[QuerySet[Payment], bool]:
        """Search by the payment's own id, too: it is in the URL to which Stripe sends people back."""
        try:
            return queryset.filter(pk=UUID(search_term.strip())), False
        except ValueError:
            found: tuple[QuerySet[Payment], bool] = super().get_search_results(request, queryset, search_term)
            return found

    def render_change_form(
        self, request: HttpRequest, context: Any, add: bool = False, **kwargs: Any
    ) -> HttpResponse:
        """Add the history, the ledger's entries, and whether Stripe can be asked again."""
        row: Payment | None = kwargs.get("obj")
        if row is not None:
            context |= {
                "payment": row,
                "explanation": explanation(row),
                "entries": _entries(row),
                "is_operator": access.is_operator(request.user),
                "can_ask": configuration.is_on() and bool(row.session_id),
            }
        response: HttpResponse = super().render_change_form(request, context, add=add, **kwargs)
        return response

    @display(description="Amount", ordering="amount_cents")
    def amount(self, row: Payment) -> str:
        return _dollars(row.amount_cents)

    @display(
        description="State",
        ordering="state",
        label={State.PAID: "success", State.OPEN: "info", State.EXPIRED: "warning", State.REFUSED: "danger"},
    )
    def state_badge(self, row: Payment) -> tuple[str, str]:
        return row.state, row.get_state_display().lower()

    @display(description="In the ledger", ordering="booked_cents")
    def in_ledger(self, row: Payment) -> str:
        return _dollars(row.booked_cents)

    @display(description="Given back", ordering="returned_cents")
    def returned(self, row: Payment) -> str | None:
        """Return the amount that was refunded or is disputed at Stripe."""
        return _dollars(row.returned_cents) if row.returned_cents else None

    @display(description="Receipt")
    def receipt(self, row: Payment) -> SafeString | None:
        return _outside(row.receipt_url, "Stripe's receipt")

    @display(description="At Stripe")
    def at_stripe(self, row: Payment) -> SafeString | None:
        return _outside(dashboard_url(row), "Stripe's dashboard")

    @display(description="Asked Stripe")
    def looks(self, row: Payment) -> str:
        """Return how often Stripe was asked, and when it is asked again."""
        again = f"again {moment(row.look_at)} UTC" if row.look_at else "not again by itself"
        return f"{row.looks_count:,} times, {again}"


def _entries(row: Payment) -> list[LedgerEntry]:
    """Return the payment's ledger entries, oldest first; `payments` numbers their references."""
    numbers = range(2, min(row.bookings_count, MAX_ENTRIES) + 1)
    references = [row.payment_intent, *(f"{row.payment_intent}/{number}" for number in numbers)]
    known = references if row.bookings_count else []
    return list(LedgerEntry.objects.filter(reference__in=known).order_by("pk"))


def _outside(url: str, text: str) -> SafeString | None:
    if not url:
        return None
    return format_html(
        '<a class="text-primary-600 dark:text-primary-500" href="{}" rel="noopener noreferrer">{}</a>',
        url,
        text,
    )
