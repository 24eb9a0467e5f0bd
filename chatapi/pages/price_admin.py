"""The operator's pages about prices: all of them as rows, and the form of a new one."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget

from chatapi.models import ServedModel
from chatapi.pages.catalog_links import link
from chatapi.pages.price_timeline import percent
from usage.admin import ModelFilter
from usage.books import prices
from usage.formatting import moment, usd
from usage.models import Price
from usage.pages.forms import USDField
from usage.pages.page_query import address
from usage.pricing import PRICE_COLUMNS

AMOUNTS = list(PRICE_COLUMNS)


class NewPriceForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A price from some moment on."""

    model = forms.ModelChoiceField(ServedModel.objects.all(), widget=UnfoldAdminSelectWidget)
    input_per_mtok_nanodollars = USDField(label="Input", help_text="USD per million tokens.")
    cached_input_per_mtok_nanodollars = USDField(
        label="Cached input",
        help_text="USD per million tokens of the input that an upstream has in its cache; empty: as input.",
        required=False,
    )
    output_per_mtok_nanodollars = USDField(label="Output", help_text="USD per million tokens.")
    reasoning_per_mtok_nanodollars = USDField(
        label="Reasoning",
        help_text="USD per million tokens that are reasoning; empty: as output.",
        required=False,
    )

    class Meta:
        model = Price
        fields = ["model", "effective_from", *AMOUNTS]

    def clean_model(self) -> str:
        """Prices keep the name, so that they outlive the model."""
        return str(self.cleaned_data["model"].pk)

    def clean(self) -> dict[str, Any]:
        """What is left out is as in the catalog's file."""
        data = self.cleaned_data
        if data.get(AMOUNTS[1], 0) is None:
            data[AMOUNTS[1]] = data.get(AMOUNTS[0])
        if not self.errors and not prices.is_change(Price(**data)):
            raise forms.ValidationError("The model has this price at that time already.")
        return data


@admin.register(Price)
class PriceAdmin(ModelAdmin):
    """Prices by the moment they begin. A change of price is a new row: what was charged stays explicable."""

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
    list_filter = [ModelFilter]
    ordering = ["model", "-effective_from"]
    show_full_result_count = False
    actions_detail = ["show_timeline"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """From now on, if nobody says otherwise; of a model that the address names, what it costs now."""
        initial = {"effective_from": timezone.now(), **super().get_changeform_initial_data(request)}
        now = prices.current().get(initial.get("model", ""))
        return initial if now is None else {name: getattr(now, name) for name in AMOUNTS} | initial

    def get_fields(self, request: HttpRequest, obj: Price | None = None) -> list[str]:
        """The form of a new price; a price that exists, as it is listed."""
        return list(self.list_display if obj else NewPriceForm.Meta.fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Price | None = None) -> list[str]:
        """All of what exists."""
        return list(self.list_display) if obj else []

    def get_queryset(self, request: HttpRequest) -> QuerySet[Price]:
        """With the moment from which its model's price in effect counts, and what the model cost before."""
        same = Price.objects.filter(model=OuterRef("model"))
        current = same.filter(effective_from__lte=Now()).order_by("-effective_from")
        last = same.filter(effective_from__lt=OuterRef("effective_from")).order_by("-effective_from")
        before = {f"before_{name}": Subquery(last.values(name)[:1]) for name in AMOUNTS[:-1]}
        # Without a price of its own, reasoning cost what output did.
        reasoning = last.annotate(charged=Coalesce(F(AMOUNTS[-1]), F(AMOUNTS[-2]))).values("charged")[:1]
        rows: QuerySet[Price] = super().get_queryset(request)
        return rows.annotate(
            current_from=Subquery(current.values("effective_from")[:1]),
            **before,
            **{f"before_{AMOUNTS[-1]}": Subquery(reasoning)},
        )

    def has_change_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        """Never."""
        return False

    def has_timeline_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Whoever may see prices."""
        return request.user.has_perm("usage.view_price")

    @action(description="Timeline", icon="timeline", permissions=["timeline"])
    def show_timeline(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """To all prices of this one's model."""
        row = self.get_object(request, object_id)
        return redirect(address("prices", {"model": row.model if row else ""}))

    @display(description="Status", label={"in effect": "success", "upcoming": "info", "past": "warning"})
    def status(self, row: Any) -> str:
        """Whether it counts now."""
        if row.effective_from == row.current_from:
            return "in effect"
        return "upcoming" if row.current_from is None or row.effective_from > row.current_from else "past"

    @display(description="From (UTC)", ordering="effective_from")
    def begins(self, row: Price) -> str | None:
        """When it takes effect."""
        return moment(row.effective_from)

    @display(description="Input / Mtok", ordering=AMOUNTS[0])
    def input_price(self, row: Price) -> str:
        """In US dollars, and how it changed."""
        return _shown(row, AMOUNTS[0])

    @display(description="Cached input / Mtok", ordering=AMOUNTS[1])
    def cached_input_price(self, row: Price) -> str:
        """In US dollars, and how it changed."""
        return _shown(row, AMOUNTS[1])

    @display(description="Output / Mtok", ordering=AMOUNTS[2])
    def output_price(self, row: Price) -> str:
        """In US dollars, and how it changed."""
        return _shown(row, AMOUNTS[2])

    @display(description="Reasoning / Mtok", ordering=AMOUNTS[3])
    def reasoning_price(self, row: Price) -> str:
        """In US dollars, and how it changed."""
        return "as output" if row.reasoning_per_mtok_nanodollars is None else _shown(row, AMOUNTS[3])

    @display(description="Model", ordering="model")
    def timeline(self, row: Price) -> SafeString:
        """What it is for, and the way to all prices of that."""
        return link(address("prices", {"model": row.model}), row.model, f"Prices of {row.model}")


def _shown(row: Price, name: str) -> str:
    amount, before = getattr(row, name), getattr(row, f"before_{name}")
    if before in (None, amount):
        return usd(amount)
    return f"{usd(amount)} ({percent(before, amount)})".replace(" %", "\N{NO-BREAK SPACE}%")
