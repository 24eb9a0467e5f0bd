"""The operator's pages about the catalog: models, their deployments and prices."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db import models
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin, StackedInline
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminURLInputWidget

from chatapi import key_admin  # noqa: F401  registers its pages
from chatapi.models import Deployment, ServedModel
from usage.admin import ModelFilter, moment, usd
from usage.forms import USDField
from usage.models import Price


class DeploymentInline(StackedInline):
    """The ways to serve a model."""

    model = Deployment
    extra = 0
    formfield_overrides = {models.URLField: {"widget": UnfoldAdminURLInputWidget, "assume_scheme": "https"}}
    fields = [
        ("name", "engine"), ("base_url", "upstream_model"), ("api_key_env", "is_active"),
        ("priority", "weight"), "on_disconnect", "timeouts", "extra_parameters", "allow_remote_media",
    ]  # fmt: skip


@admin.register(ServedModel)
class ServedModelAdmin(ModelAdmin):
    """The models that clients can name."""

    list_display = ["id", "status", "input_price", "output_price", "deployments_count", "context_window"]
    list_filter = ["is_active"]
    search_fields = ["id"]
    show_full_result_count = False
    inlines = [DeploymentInline]
    fields = ["id", "owned_by", "context_window", "max_output_tokens", "is_active", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: ServedModel | None = None) -> list[str]:
        """A model's id is what history names it by."""
        return ["id", "created_at"] if obj else ["created_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[ServedModel]:
        """With the price in effect and the count of deployments, so that a list costs one query."""
        current = Price.objects.filter(model=OuterRef("pk"), effective_from__lte=Now()).order_by("-effective_from")
        names = ("input_per_mtok_nanodollars", "output_per_mtok_nanodollars")
        rows: QuerySet[ServedModel] = super().get_queryset(request)
        active = Count("deployments", filter=Q(deployments__is_active=True))
        return rows.annotate(active_deployments=active, **{name: Subquery(current.values(name)[:1]) for name in names})

    @display(description="Status", label={"served": "success", "inactive": "warning", "no price": "danger", "no deployment": "danger"})
    def status(self, row: Any) -> str:
        """Whether clients can use it, and if not, why."""
        if not row.is_active:
            return "inactive"
        if not row.active_deployments:
            return "no deployment"
        return "no price" if row.output_per_mtok_nanodollars is None else "served"

    @display(description="Input / Mtok")
    def input_price(self, row: Any) -> str | None:
        """In effect now."""
        return _usd(row.input_per_mtok_nanodollars)

    @display(description="Output / Mtok")
    def output_price(self, row: Any) -> str | None:
        """In effect now."""
        return _usd(row.output_per_mtok_nanodollars)

    @display(description="Deployments", ordering="active_deployments")
    def deployments_count(self, row: Any) -> int:
        """How many active ones it has."""
        return int(row.active_deployments)


class NewPriceForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A price from some moment on."""

    model = forms.ModelChoiceField(ServedModel.objects.all(), widget=UnfoldAdminSelectWidget)
    input_per_mtok_nanodollars = USDField(label="Input", help_text="USD per million tokens.")
    cached_input_per_mtok_nanodollars = USDField(label="Cached input", help_text="USD per million tokens.")
    output_per_mtok_nanodollars = USDField(label="Output", help_text="USD per million tokens.")
    reasoning_per_mtok_nanodollars = USDField(
        label="Reasoning", help_text="USD per million tokens that are reasoning; empty: as output.", required=False
    )

    class Meta:
        model = Price
        fields = [
            "model",
            "effective_from",
            "input_per_mtok_nanodollars",
            "cached_input_per_mtok_nanodollars",
            "output_per_mtok_nanodollars",
            "reasoning_per_mtok_nanodollars",
        ]

    def clean_model(self) -> str:
        """Prices keep the name, so that they outlive the model."""
        return str(self.cleaned_data["model"].pk)


@admin.register(Price)
class PriceAdmin(ModelAdmin):
    """Prices by the moment they begin. A change of price is a new row: what was charged stays explicable."""

    form = NewPriceForm
    list_display = ["model", "begins", "status", "input_price", "cached_input_price", "output_price"]
    list_filter = [ModelFilter]
    ordering = ["model", "-effective_from"]
    show_full_result_count = False

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """From now on, if nobody says otherwise."""
        return {"effective_from": timezone.now(), **super().get_changeform_initial_data(request)}

    def get_fields(self, request: HttpRequest, obj: Price | None = None) -> list[str]:
        """The form of a new price; a price that exists, as it is listed."""
        return list(self.list_display if obj else NewPriceForm.Meta.fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Price | None = None) -> list[str]:
        """All of what exists."""
        return list(self.list_display) if obj else []

    def get_queryset(self, request: HttpRequest) -> QuerySet[Price]:
        """With the moment from which its model's price in effect counts."""
        current = Price.objects.filter(model=OuterRef("model"), effective_from__lte=Now()).order_by("-effective_from")
        rows: QuerySet[Price] = super().get_queryset(request).annotate(current_from=Subquery(current.values("effective_from")[:1]))
        return rows

    def has_change_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Price | None = None) -> bool:
        """Never."""
        return False

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

    @display(description="Input / Mtok", ordering="input_per_mtok_nanodollars")
    def input_price(self, row: Price) -> str:
        """In US dollars."""
        return usd(row.input_per_mtok_nanodollars)

    @display(description="Cached input / Mtok", ordering="cached_input_per_mtok_nanodollars")
    def cached_input_price(self, row: Price) -> str:
        """In US dollars."""
        return usd(row.cached_input_per_mtok_nanodollars)

    @display(description="Output / Mtok", ordering="output_per_mtok_nanodollars")
    def output_price(self, row: Price) -> str:
        """In US dollars."""
        return usd(row.output_per_mtok_nanodollars)


def _usd(nanodollars: int | None) -> str | None:
    return None if nanodollars is None else usd(nanodollars)
