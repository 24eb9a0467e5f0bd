"""Admin pages about budget limits, budgets, credit and discounts."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import BadRequest
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from unfold.decorators import action, display
from unfold.paginator import InfinitePaginator

from accounts.audit import recorder
from accounts.natural_order import NaturalOrder
from accounts.pages.admin_mixins import ChoosesRows, IsSetFilter, ListAdmin, OwnChangesForm, ReadOnlyAdmin
from accounts.pages.admin_site import CONFLICT
from accounts.pages.tenant_admin import TenantAdmin
from usage.books import prices
from usage.errors import NotBooked
from usage.formatting import moment
from usage.insights.budget_limit_list import with_subject
from usage.models import Budget, BudgetLimit, Credit, Discount, Scope
from usage.models.budget_keys import BUDGET_PARTS, LIMIT_PARTS, OUTER_LIMIT
from usage.pages import exports
from usage.pages.columns import amounts, time_column
from usage.pages.exports import ExportedList, Record
from usage.pages.forms import END_USERS, DiscountForm, LimitForm, NewLimitForm
from usage.payment import metered_usage


class ScopeFilter(admin.ChoicesFieldListFilter):
    """A filter by scope, in the words of the column."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice in super().choices(changelist):
            yield {**choice, "display": str(choice["display"]).lower().replace("api key", "key")}


class BudgetScopeFilter(ScopeFilter):
    """The same, for a list that has end users only if they are chosen, and says so above its rows."""

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        found: Any = super().queryset(request, rows)
        if not self.used_parameters:
            found = found.exclude(scope=Scope.END_USER)
        return found  # type: ignore[no-any-return]


def _owner_column(title: str) -> Any:
    @display(description=title, ordering="scope_id")
    def column(_: Any, row: Any) -> str:
        return row.subject_name or f"{row.scope} {row.scope_id}"

    return column


@display(description="Scope", ordering="scope")
def _kind(_: Any, row: Budget | BudgetLimit) -> str:
    return Scope(row.scope).label.lower().replace("api key", "key")


@admin.register(BudgetLimit)
class BudgetLimitAdmin(TenantAdmin, ListAdmin):
    """Limits and soft limits of spending; without a row here there is no limit."""

    nothing_yet = "No budget limits."
    list_display = ["subject", "kind", *LIMIT_PARTS, "limit", "soft_limit"]
    number_columns = ("limit", "soft_limit")
    list_display_links = ["subject"]
    subject, kind = _owner_column("Applies to"), _kind
    limit = amounts("Limit", attrgetter("limit_nanodollars"), "limit_nanodollars", "none")[0]
    soft_limit = amounts(
        "Soft limit", attrgetter("soft_limit_nanodollars"), "soft_limit_nanodollars", "none"
    )[0]
    list_filter = [("scope", ScopeFilter), *LIMIT_PARTS]
    ordering = ["scope", "scope_id", *LIMIT_PARTS]

    def get_queryset(self, request: HttpRequest) -> QuerySet[BudgetLimit]:
        return with_subject(super().get_queryset(request))

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> "type[forms.ModelForm[BudgetLimit]]":
        """Choose the form: a limit's subject is chosen once, its amounts may change."""
        form: type[forms.ModelForm[BudgetLimit]] = super().get_form(
            request, obj, change, form=LimitForm if obj else NewLimitForm, **kwargs
        )
        return form

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[str | None, dict[str, Any]]]:
        if obj is not None:
            fields = ["subject", "kind", *LIMIT_PARTS, "limit_nanodollars", "soft_limit_nanodollars"]
            return [(None, {"fields": fields})]
        owners = self.shown_to(request, ["organization", "project", "api_key"])
        return [
            ("Who (choose one)", {"fields": owners}),
            ("End users", {"fields": ["each_end_user", "end_user"], "description": END_USERS}),
            ("Limit", {"fields": [*LIMIT_PARTS, "limit_nanodollars", "soft_limit_nanodollars"]}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["subject", "kind", *LIMIT_PARTS] if obj else []

    def response_post_save_add(self, request: HttpRequest, obj: BudgetLimit) -> HttpResponse:
        """Show the limit beside what is spent of it."""
        return redirect("admin:budget", obj.pk)

    def response_post_save_change(self, request: HttpRequest, obj: BudgetLimit) -> HttpResponse:
        return redirect("admin:budget", obj.pk)

    operators_fields = ("organization",)

    def is_operators(self, row: BudgetLimit) -> bool:
        return row.is_of_organization


@admin.register(Budget)
class BudgetAdmin(ExportedList, TenantAdmin, ReadOnlyAdmin, ListAdmin):
    """The amounts spent and reserved in each period."""

    nothing_yet = "Nothing spent yet."
    list_before_template = "usage/budgets_before.html"
    export_name = "budgets"
    export_columns = (
        "subject", "scope", "scope_id", *BUDGET_PARTS, "posted_nanodollars", "posted_usd",
        "pending_nanodollars", "pending_usd", "limit_nanodollars", "limit_usd", "soft_limit_reached_at",
    )  # fmt: skip
    list_display = [
        "subject", "kind", *BUDGET_PARTS, "posted", "pending", "limit", "soft_limit_reached",
    ]  # fmt: skip
    number_columns = ("posted", "pending", "limit")
    list_filter = [
        ("scope", BudgetScopeFilter), *BUDGET_PARTS, ("soft_limit_reached_at", IsSetFilter),
    ]  # fmt: skip
    subject, kind = _owner_column("Budget of"), _kind
    ordering = ["-period_start", "scope", "scope_id"]
    paginator = InfinitePaginator
    posted, exact_posted = amounts("Spent", attrgetter("posted_nanodollars"), "posted_nanodollars")
    pending, exact_pending = amounts("Reserved", attrgetter("pending_nanodollars"), "pending_nanodollars")
    limit, exact_limit = amounts("Limit", attrgetter("limit_nanodollars"), without="no limit")
    readonly_fields = [
        "subject", "kind", "exact_posted", "exact_pending", "exact_limit", "soft_limit_reached",
    ]  # fmt: skip
    fields = [
        "subject", "kind", *BUDGET_PARTS, "exact_posted", "exact_pending", "exact_limit",
        "soft_limit_reached",
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Budget]:
        limit = Subquery(BudgetLimit.rows(OUTER_LIMIT).values("limit_nanodollars"))
        rows: QuerySet[Budget] = with_subject(super().get_queryset(request)).annotate(limit_nanodollars=limit)
        return rows

    def export_record(self, row: Any) -> Record:
        """Return the budget with its limit, its amounts exact and in US dollars."""
        amounts = {name: getattr(row, f"{name}_nanodollars") for name in ("posted", "pending", "limit")}
        return {
            **row.key._asdict(),
            **{f"{name}_nanodollars": amount for name, amount in amounts.items()},
            **{f"{name}_usd": exports.usd(amount) for name, amount in amounts.items()},
            "subject": self.subject(row),
            "period_start": row.period_start.isoformat(),
            "soft_limit_reached_at": row.soft_limit_reached_at,
        }

    @display(description="Soft limit reached (UTC)", ordering="soft_limit_reached_at")
    def soft_limit_reached(self, row: Budget) -> str:
        return moment(row.soft_limit_reached_at) or "no"


def _balance(row: Any) -> int:
    """Return what is left of the credit `row`, without subtracting running requests."""
    return int(row.credited_nanodollars - (row.spent_nanodollars or 0))


class CreditForm(OwnChangesForm):
    """Whether an organization is prepaid only."""

    def clean_is_required(self) -> bool:
        """Raise `ValidationError` if Stripe bills the organization's usage."""
        is_required: bool = self.cleaned_data["is_required"]
        if is_required:
            try:
                metered_usage.refuse_billed(self.instance.organization)
            except NotBooked as error:
                raise forms.ValidationError(str(error)) from error
        return is_required


@admin.register(Credit)
class CreditAdmin(TenantAdmin, ListAdmin):
    """Prepaid credit of organizations, and whether requests need it."""

    form = CreditForm
    nothing_yet = "No prepaid credit yet."
    nobody_may = ("add", "delete")  # the first grant makes the row
    actions_list = ["grant_any"]
    actions_detail = ["grant", "refund"]
    list_display = ["organization", "prepaid_only", "credited", "spent", "held", "available"]
    number_columns = ("credited", "spent", "held", "available")
    credited, exact_credited = amounts(
        "Granted (net)", attrgetter("credited_nanodollars"), "credited_nanodollars"
    )
    spent, exact_spent = amounts("Spent", lambda row: row.spent_nanodollars or 0)
    held, exact_held = amounts("Reserved", lambda row: row.held_nanodollars or 0)
    exact_balance = amounts("Balance", _balance)[1]
    # "Prepaid only" refuses what it does not cover.
    available, exact_available = amounts("Available", lambda row: _balance(row) - (row.held_nanodollars or 0))
    list_filter = ["is_required"]
    list_select_related = ["organization"]
    ordering = [NaturalOrder("organization__name")]

    def get_form(
        self, request: HttpRequest, obj: Credit | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        return super().get_form(request, obj, change, labels={"is_required": "Prepaid only"}, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Credit | None = None) -> list[str]:
        amounts = [f"exact_{name}" for name in ("credited", "spent", "balance", "held", "available")]
        return ["organization", "is_required", *amounts]

    def get_readonly_fields(self, request: HttpRequest, obj: Credit | None = None) -> list[str]:
        return [name for name in self.get_fields(request, obj) if name != "is_required"]

    def save_model(self, request: HttpRequest, obj: Credit, form: Any, change: bool) -> None:
        """Save only the rule: the amounts may have changed since the page was read."""
        recorder.update(Credit.objects.filter(pk=obj.pk), is_required=obj.is_required)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list; an empty one offers to grant credit first."""
        changelist = super().get_changelist_instance(request)
        if self.has_book_permission(request):
            changelist.first_step = {"label": "Grant credit", "url": reverse("admin:credit_grant")}
        return changelist

    def get_queryset(self, request: HttpRequest) -> QuerySet[Credit]:
        ever = Budget.of_credit().filter(scope_id=OuterRef("organization_id"))
        names = {"spent_nanodollars": "posted_nanodollars", "held_nanodollars": "pending_nanodollars"}
        amounts = {name: Subquery(ever.values(column)) for name, column in names.items()}
        rows: QuerySet[Credit] = super().get_queryset(request).annotate(**amounts)
        return rows

    def has_book_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("usage.add_ledgerentry")

    @action(description="Grant credit", permissions=["book"], icon="add_card", url_path="grant-any")
    def grant_any(self, request: HttpRequest) -> HttpResponse:
        return redirect("admin:credit_grant")

    @action(description="Grant credit", permissions=["book"], icon="add_card", url_path="grant")
    def grant(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect(reverse("admin:credit_grant") + f"?organization={object_id}")

    @action(description="Refund credit", permissions=["book"], icon="undo", url_path="refund")
    def refund(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect(reverse("admin:credit_refund") + f"?organization={object_id}")

    @display(description="Prepaid only", ordering="is_required")
    def prepaid_only(self, row: Credit) -> str:
        return "Yes" if row.is_required else "No"


@admin.register(Discount)
class DiscountAdmin(TenantAdmin, ChoosesRows, ListAdmin):
    """Discounts by start time. A change is a new row, as with prices; 0 % ends a discount."""

    form = DiscountForm
    nothing_yet = "No discounts: every organization pays the full price."
    nobody_may = ("change", "delete")
    list_display = ["organization", "begins", "percent"]
    number_columns = ("percent",)
    autocomplete_fields = ["organization"]
    list_filter = ["organization"]
    list_select_related = ["organization"]
    ordering = [NaturalOrder("organization__name"), "-effective_from"]
    begins = time_column("From", "effective_from", ordering="effective_from")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Start now unless the URL says otherwise."""
        return {"effective_from": timezone.now(), **super().get_changeform_initial_data(request)}

    def get_fields(self, request: HttpRequest, obj: Discount | None = None) -> list[str]:
        """Return the fields of the form, or of an existing discount as the list shows it."""
        return list(self.list_display) if obj else ["organization", "effective_from", "basis_points"]

    def get_readonly_fields(self, request: HttpRequest, obj: Discount | None = None) -> list[str]:
        return list(self.list_display) if obj else []

    def save_model(self, request: HttpRequest, obj: Discount, form: Any, change: bool) -> None:
        """Refuse the discount if another person has saved the same one since the form was validated."""
        if not prices.add_discount(obj):
            raise BadRequest(CONFLICT)

    @display(description="Discount", ordering="basis_points")
    def percent(self, row: Discount) -> str:
        return f"{row.basis_points / 100:g} %"
