"""Admin pages about prices: their list, and the form of a new one."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import BadRequest
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget

from accounts.pages.admin_mixins import ListAdmin, check_year
from accounts.pages.admin_site import CONFLICT
from chatapi.catalog import sandbox_last
from chatapi.models import ServedModel
from chatapi.pages.price_timeline import percent, written
from chatapi.pages.serving_gaps import tell
from chatapi.pages.theme import link
from usage.admin import ModelFilter
from usage.books import prices
from usage.formatting import moment, usd
from usage.models import Price
from usage.pages.forms import USDField
from usage.pages.links import page_url
from usage.pricing import FALLBACKS, PRICE_COLUMNS

AMOUNTS = list(PRICE_COLUMNS)


class NewPriceForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A new price."""

    model = forms.ModelChoiceField(
        ServedModel.objects.order_by(*sandbox_last()), widget=UnfoldAdminSelectWidget
    )
    input_per_mtok_nanodollars = USDField(label="Input", help_text="USD per million tokens.")
    cached_input_per_mtok_nanodollars = USDField(
        label="Cached input",
        help_text="USD per million cached input tokens. Empty: same as input.",
        required=False,
    )
    output_per_mtok_nanodollars = USDField(label="Output", help_text="USD per million tokens.")
    reasoning_per_mtok_nanodollars = USDField(
        label="Reasoning",
        help_text="USD per million reasoning tokens. Empty: same as output.",
        required=False,
    )
    cache_write_per_mtok_nanodollars = USDField(
        label="Cache write",
        help_text="USD per million input tokens written to a cache. Empty: same as input.",
        required=False,
    )
    cache_write_1h_per_mtok_nanodollars = USDField(
        label="Cache write, 1 h",
        help_text="USD per million input tokens that a cache keeps for an hour. Empty: same as cache write.",
        required=False,
    )

    class Meta:
        model = Price
        fields = ["model", "effective_from", *AMOUNTS]

    def clean_model(self) -> str:
        """Return the model's name: prices outlive models."""
        return str(self.cleaned_data["model"].pk)

    def clean_effective_from(self) -> datetime:
        moment: datetime = self.cleaned_data["effective_from"]
        check_year(moment)
        return moment

    def clean(self) -> dict[str, Any]:
        """Set an empty price of cached input to that of input, as catalog files do; refuse an equal price."""
        data = self.cleaned_data
        # None means left out; a missing key means that the amount could not be read and has its own error.
        if data.get(AMOUNTS[1], 0) is None:
            self._check_cached(data)
            data[AMOUNTS[1]] = data.get(AMOUNTS[0])
        if not self.errors and not prices.is_change(Price(**data)):
            raise forms.ValidationError("The model has this price at that time already.")
        return data

    def _check_cached(self, data: dict[str, Any]) -> None:
        """Refuse an empty price if cached input is cheaper than input now: that would be a silent rise."""
        now = prices.current().get(data.get("model") or "")
        if now is not None and now.cached_input_per_mtok_nanodollars < now.input_per_mtok_nanodollars:
            shown = usd(now.cached_input_per_mtok_nanodollars)
            text = f"It is {shown} now. Enter a price: empty would charge cached input as input."
            self.add_error(AMOUNTS[1], text)


@admin.register(Price)
class PriceAdmin(ListAdmin):
    """Prices by start time. A change is a new row, so that old charges can be explained."""

    change_list_template = "chatapi/prices_list.html"
    form = NewPriceForm
    list_display = [
        "begins",
        "timeline",
        "status",
        "input_price",
        "cached_input_price",
        "output_price",
        "reasoning_price",
    ]
    number_columns = ("input_price", "cached_input_price", "output_price", "reasoning_price")
    # The list has no room for the last two on a small laptop; the timeline shows them, too.
    detail_display = [*list_display, "cache_write_price", "cache_write_1h_price"]
    list_filter = [ModelFilter]
    ordering = ["model", "-effective_from"]
    show_full_result_count = False
    actions_detail = ["show_timeline"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Start now unless the URL says otherwise, with the current price of the URL's model."""
        initial = {"effective_from": timezone.now(), **super().get_changeform_initial_data(request)}
        now = prices.current().get(initial.get("model", ""))
        return initial if now is None else {name: getattr(now, name) for name in AMOUNTS} | initial

    def get_fields(self, request: HttpRequest, obj: Price | None = None) -> list[str]:
        """Return the fields of the form, or of an existing price as the list shows it."""
        return list(self.detail_display if obj else NewPriceForm.Meta.fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Price | None = None) -> list[str]:
        return list(self.detail_display) if obj else []

    def get_queryset(self, request: HttpRequest) -> QuerySet[Price]:
        """Return the prices with the start of their model's current price, and with the price before."""
        same = Price.objects.filter(model=OuterRef("model"))
        current = same.filter(effective_from__lte=Now()).order_by("-effective_from")
        last = same.filter(effective_from__lt=OuterRef("effective_from")).order_by("-effective_from")
        before = {
            f"before_{name}": Subquery(last.annotate(charged=_charged(name)).values("charged")[:1])
            for name in AMOUNTS
        }
        rows: QuerySet[Price] = super().get_queryset(request)
        return rows.annotate(current_from=Subquery(current.values("effective_from")[:1]), **before)

    def save_model(self, request: HttpRequest, obj: Price, form: Any, change: bool) -> None:
        """Refuse the price if another person has saved the same one since the form was validated."""
        if not prices.add(obj):
            raise BadRequest(CONFLICT)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        tell(request, form.instance.model)

    def has_change_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        return False

    def has_timeline_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("usage.view_price")

    @action(description="Timeline", icon="timeline", permissions=["timeline"])
    def show_timeline(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.get_object(request, object_id)
        return redirect(page_url("prices", {"model": row.model if row else ""}))

    @display(description="Status", label={"in effect": "success", "upcoming": "info", "past": "warning"})
    def status(self, row: Any) -> str:
        if row.effective_from == row.current_from:
            return "in effect"
        return "upcoming" if row.current_from is None or row.effective_from > row.current_from else "past"

    @display(description="From (UTC)", ordering="effective_from")
    def begins(self, row: Price) -> str | None:
        return moment(row.effective_from)

    @display(description="Input / Mtok", ordering=AMOUNTS[0])
    def input_price(self, row: Price) -> str:
        return _shown(row, AMOUNTS[0])

    @display(description="Cached input / Mtok", ordering=AMOUNTS[1])
    def cached_input_price(self, row: Price) -> str:
        return _shown(row, AMOUNTS[1])

    @display(description="Output / Mtok", ordering=AMOUNTS[2])
    def output_price(self, row: Price) -> str:
        return _shown(row, AMOUNTS[2])

    @display(description="Reasoning / Mtok", ordering=AMOUNTS[3])
    def reasoning_price(self, row: Price) -> str:
        return _shown(row, AMOUNTS[3])

    @display(description="Cache write / Mtok", ordering=AMOUNTS[4])
    def cache_write_price(self, row: Price) -> str:
        return _shown(row, AMOUNTS[4])

    @display(description="Cache write, 1 h / Mtok", ordering=AMOUNTS[5])
    def cache_write_1h_price(self, row: Price) -> str:
        return _shown(row, AMOUNTS[5])

    @display(description="Model", ordering="model")
    def timeline(self, row: Price) -> SafeString:
        return link(page_url("prices", {"model": row.model}), row.model, f"Prices of {row.model}")


def _charged(name: str) -> Coalesce | F:
    """Return an expression: the price of this part or, if it is null, that of its fallback."""
    return Coalesce(F(name), _charged(FALLBACKS[name])) if name in FALLBACKS else F(name)


def _shown(row: Price, name: str) -> str:
    amount, before = getattr(row, name), getattr(row, f"before_{name}")
    if amount is None or before in (None, amount):
        return written(row, name)
    return f"{usd(amount)} ({percent(before, amount)})".replace(" %", "\N{NO-BREAK SPACE}%")
