"""Admin pages of the service's own rows: generations, ledger, hourly usage, refused requests; read-only."""

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from unfold.decorators import action, display
from unfold.paginator import InfinitePaginator

from accounts import access
from accounts.natural_order import NaturalOrder
from accounts.pages.admin_mixins import ListAdmin, ReadOnlyAdmin
from accounts.pages.tenant_admin import TenantAdmin
from usage.books import receipts
from usage.database.clock import database_now
from usage.database.replica import report
from usage.exports import exporting
from usage.formatting import moment, usd
from usage.models import CHARGED, Generation, HourlyUsage, Kind, LedgerEntry, Price, RefusedRequests
from usage.pages import (
    budget_admin,  # noqa: F401  registers its own pages
    exports,
    payment_pages,  # noqa: F401  registers its own pages
)
from usage.pages.columns import amounts, count_column, time_column
from usage.pages.exports import ExportedList
from usage.pages.filters import generation_id_in
from usage.rollups import refused_requests

# Of the requests without a valid key, above the list of refusals.
KEY_REFUSAL_DAYS = 14
_OUTCOMES = {
    "completed": "success",
    "client cancelled": "warning",
    "failed": "danger",
    "worker lost": "danger",
    "not started": "danger",
    "admitted": "info",
    "running": "info",
}


class ModelFilter(admin.SimpleListFilter):
    """Filter by served model. It offers the priced models, which needs no scan of the rows."""

    title = "model"
    parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        models = Price.objects.order_by("model").values_list("model", flat=True).distinct()
        return [(name, name) for name in models]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(model=self.value()) if self.value() else rows


class Records:
    """A mixin before `TenantAdmin`: rows that the service writes, newest first, and columns that they share.

    There may be very many rows, so they are never counted.
    """

    paginator = InfinitePaginator
    list_per_page = 30
    list_select_related = ["organization", "project", "api_key"]
    ordering: Sequence[str]
    amount, exact_amount = amounts("Amount", attrgetter("amount_nanodollars"), "amount_nanodollars")
    requests_count = count_column("Requests", "requests")
    tokens_in = count_column("Tokens in", "prompt_tokens")
    tokens_out = count_column("Tokens out", "completion_tokens")
    time: ClassVar[str]
    """The column of the index by organization and time."""

    def get_ordering(self, request: HttpRequest) -> Sequence[str]:
        """Order by an index: people of an organization read through their organization's."""
        return [f"-{self.time}"] if access.organizations_of(request.user) else self.ordering

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)  # type: ignore[misc]
        page.result_list = report(list)(page.result_list)
        return page

    @display(description="Project", ordering=NaturalOrder("project__name"))
    def project_name(self, row: Any) -> str | None:
        """Return the project's name without its organization's; None for credit."""
        return row.project and str(row.project.name)

    @display(description="Key")
    def key_name(self, row: Any) -> str | None:
        """Return the key's name and first characters; None for credit."""
        return row.api_key and str(row.api_key)

    @display(description="Who", ordering=NaturalOrder("organization__name"))
    def who(self, row: Any) -> str:
        """Return organization and project; credit has no project."""
        return f"{row.organization.name} / {row.project.name}" if row.project else str(row.organization.name)

    @display(description="Key")
    def key_short(self, row: Any) -> str | None:
        return row.api_key and str(row.api_key.name)

    @display(description="Hour (UTC)", ordering="hour")
    def hour_utc(self, row: Any) -> str:
        return f"{row.hour:%Y-%m-%d %H:00}"

    @display(description="Outcome", label=_OUTCOMES)
    def result(self, row: Any) -> str:
        return str(row.outcome or getattr(row, "state", "")).replace("_", " ")


@admin.register(Generation)
class GenerationAdmin(Records, TenantAdmin, ReadOnlyAdmin, ListAdmin):
    """Generations; the page of one is its receipt."""

    nothing_yet = "Nothing has been asked yet."
    list_display = ["admitted", "model", "who", "key_short", "result", "tokens_in", "tokens_out", "amount"]
    number_columns = ("tokens_in", "tokens_out", "amount")
    list_filter = ["outcome", "state", "usage_source", "is_test", ModelFilter, "organization", "admitted_at"]
    time = "admitted_at"
    ordering = ["-id"]  # UUIDs of version 7 sort by time, and the primary key's index has them in order
    operators_fields = ("deployment", "worker", "fence", "lease")
    admitted = time_column("Admitted", "admitted_at", ordering="id")
    claimed = time_column("Claimed", "claimed_at")
    settled = time_column("Settled", "settled_at")
    search_fields = ["id"]
    search_help_text = "Search by an id in any form, for example from a client's log."
    readonly_fields = [
        "public_id", "result", "exact_amount", "receipt", "hold", "admitted", "claimed", "settled",
        "queue_ms", "total_ms", "error", "lease", "project_name", "key_name", "corrected",
    ]  # fmt: skip
    fieldsets = [
        (None, {"fields": ["public_id", "result", "error", "finish_reason", "receipt", "corrected"]}),
        ("Request", {"fields": [
            "organization", "project_name", "key_name", "is_test", "model", "endpoint", "dialect",
            "is_stream", "choices_count",
        ]}),
        ("Timings", {"fields": [
            "admitted", "claimed", "settled", "queue_ms", "first_token_ms", "last_token_ms", "total_ms",
        ]}),
        ("Tokens and reserved amount", {"fields": [
            "usage_source", "usage_note", "prompt_tokens", "cached_tokens", "cache_write_tokens",
            "cache_write_1h_tokens", "completion_tokens", "reasoning_tokens", "max_output_tokens", "hold",
            "budget_day",
        ]}),
        ("Execution", {"fields": ["state", "deployment", "attempts", "worker", "fence", "lease"]}),
    ]  # fmt: skip

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Generation], search_term: str
    ) -> tuple[QuerySet[Generation], bool]:
        """Find the row by an id anywhere in the search term."""
        if not search_term:
            return queryset, False
        found = generation_id_in(search_term)
        return (queryset.filter(pk=found) if found else queryset.none()), False

    @display(description="Id")
    def public_id(self, row: Generation) -> str:
        return str(row)

    @display(description="Lease until (UTC)")
    def lease(self, row: Generation) -> str | None:
        return None if row.state == "settled" else moment(row.lease_expires_at)

    @display(description="Queue ms")
    def queue_ms(self, row: Generation) -> int | None:
        return receipts.queue_ms(row)

    @display(description="Total ms")
    def total_ms(self, row: Generation) -> int | None:
        return receipts.total_ms(row)

    @display(description="Error")
    def error(self, row: Generation) -> str | None:
        return f"{row.error_code}: {row.error_message}" if row.error_code else None

    @display(description="Reserved")
    def hold(self, row: Generation) -> str:
        return usd(row.reserved_nanodollars)

    @display(description="Corrected by", empty_value="nothing")
    def corrected(self, row: Generation) -> str | None:
        corrections = row.ledger_entries.filter(kind=Kind.CORRECTION)
        total = corrections.aggregate(total=Sum("amount_nanodollars"))["total"]
        return None if total is None else usd(total)

    @display(description="Receipt")
    def receipt(self, row: Generation) -> str:
        lines = [
            {
                "name": line.name.replace("_", " "),
                "tokens": f"{line.tokens:,}",
                "price": usd(line.price_per_mtok_nanodollars),
                "amount": usd(line.amount_nanodollars),
            }
            for line in receipts.line_items(row)
        ]
        return render_to_string(
            "usage/receipt.html", {"row": row, "lines": lines, "amount": usd(row.amount_nanodollars)}
        )


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ExportedList, Records, TenantAdmin, ReadOnlyAdmin, ListAdmin):
    """Ledger entries. A charge is corrected by one more entry."""

    nothing_yet = (
        "No money has moved yet: each request that ends writes an entry here, and so do grants, refunds and "
        "corrections."
    )
    export_name = "ledger"
    export_columns = exporting.COLUMNS
    export_select_related = ("organization", "project", "api_key", "generation")
    list_select_related = [*export_select_related]
    actions_detail = ["correct"]
    created = time_column("Written", "created_at", ordering="id")
    list_display = ["created", "kind", "who", "key_short", "model", "result", "request_short", "amount"]
    number_columns = ("amount",)
    list_filter = ["kind", "outcome", ModelFilter, "organization", "created_at"]
    time = "created_at"
    ordering = ["-id"]
    readonly_fields = ["created", "request_link", "project_name", "key_name", "result", "exact_amount"]
    fields = [
        "created", "kind", "exact_amount", "request_link", "organization", "project_name", "key_name",
        "model", "result", "prompt_tokens", "cached_tokens", "cache_write_tokens", "cache_write_1h_tokens",
        "completion_tokens", "reasoning_tokens", "budget_day", "corrects", "reason", "recorded_by",
        "reference",
    ]  # fmt: skip

    def export_record(self, row: LedgerEntry) -> exports.Record:
        """Return the columns of `exportusage`."""
        return exporting.row(row) | {
            "created_at": row.created_at,
            "amount_usd": exports.usd(row.amount_nanodollars),
        }

    def has_correct_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return whether the person may add entries, and the charge's generation was not dropped."""
        if not request.user.has_perm("usage.add_ledgerentry"):
            return False
        entry = self.get_object(request, object_id or "0")
        return (
            entry is not None
            and entry.kind in CHARGED
            and Generation.objects.filter(pk=entry.generation_id).exists()
        )

    @action(description="Correct", permissions=["correct"], icon="edit", url_path="correct")
    def correct(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect("admin:ledger_correct", int(object_id))

    @display(description="Request")
    def request_link(self, row: LedgerEntry) -> str | None:
        """Return a link to the request's page, which exists for dropped generations too; None for credit."""
        if row.request_id is None:
            return None
        return format_html(
            '<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>',
            reverse("admin:request", args=[row.request_id]),
            row.request_id,
        )

    @display(description="Request")
    def request_short(self, row: LedgerEntry) -> str | None:
        """Return the same link with the end of the id, as in the list of requests."""
        if row.request_id is None:
            return None
        return format_html(
            '<a href="{}" title="{}">…{}</a>',
            reverse("admin:request", args=[row.request_id]),
            row.request_id,
            row.request_id[-8:],
        )


@admin.register(HourlyUsage)
class HourlyUsageAdmin(Records, TenantAdmin, ReadOnlyAdmin, ListAdmin):
    nothing_yet = "No request has ended yet: each is added to its hour here."
    list_display = [
        "hour_utc", "who", "key_short", "model", "result", "requests_count", "tokens_in",
        "tokens_out", "amount",
    ]  # fmt: skip
    number_columns = ("requests_count", "tokens_in", "tokens_out", "amount")
    list_filter = ["outcome", ModelFilter, "organization", "hour"]
    time = "hour"
    ordering = ["-id"]  # nearly the order of the hours, which have no index of their own
    readonly_fields = ["hour_utc", "project_name", "key_name", "result", "exact_amount"]
    fields = [
        "hour_utc", "organization", "project_name", "key_name", "model", "result", "requests",
        "prompt_tokens", "cached_tokens", "cache_write_tokens", "cache_write_1h_tokens", "completion_tokens",
        "reasoning_tokens", "exact_amount",
    ]  # fmt: skip


class CodeFilter(admin.SimpleListFilter):
    """Filter by error code. It offers the codes of the last week."""

    title = "code"
    parameter_name = "code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the codes in the rows that this person may see."""
        recent = access.seen_by(
            request.user, RefusedRequests.objects.filter(hour__gte=database_now() - timedelta(days=7))
        )
        return [(code, code) for code in recent.order_by("code").values_list("code", flat=True).distinct()]

    def has_output(self) -> bool:
        """Return whether it filters, also by a code that it does not offer, or offers a code."""
        return self.value() is not None or super().has_output()

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(code=self.value()) if self.value() else rows


@admin.register(RefusedRequests)
class RefusedRequestsAdmin(Records, TenantAdmin, ReadOnlyAdmin, ListAdmin):
    """Requests of known keys that were refused before anything ran, by hour."""

    nothing_yet = (
        "No request of a known key was refused: rate limits, budgets, mistakes in requests and keys that are "
        "no longer valid are counted here within seconds."
    )
    list_before_template = "usage/refused_keys.html"
    list_display = ["hour_utc", "who", "key_short", "http_status", "code", "requests_count"]
    number_columns = ("requests_count",)
    list_filter = ["organization", "project", "api_key", CodeFilter, "hour"]
    search_fields = ["project__name", "api_key__name", "api_key__public"]
    search_help_text = "Search by project, key, or the 12 characters after ck_live_."
    time = "hour"
    ordering = ["-hour", "-id"]
    readonly_fields = ["hour_utc", "project_name", "key_name", "http_status", "requests_count"]
    fields = ["hour_utc", "organization", "project_name", "key_name", "http_status", "code", "requests_count"]

    class Media:
        css = {"all": ["usage/operator.css"]}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show operators the requests without a valid key, too."""
        if access.is_operator(request.user):
            since = database_now().date() - timedelta(days=KEY_REFUSAL_DAYS - 1)
            found = {
                "key_refusals": refused_requests.key_refusals(since),
                "key_refusal_days": KEY_REFUSAL_DAYS,
            }
            extra_context = {**(extra_context or {}), **found}
        return super().changelist_view(request, extra_context)

    @display(description="Status", ordering="status", empty_value="several")
    def http_status(self, row: RefusedRequests) -> int | None:
        """Return the status of the answers; None if there were several."""
        return row.status or None
