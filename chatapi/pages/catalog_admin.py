"""Admin pages about models and their deployments."""

from typing import Any, NamedTuple

from django.contrib import admin
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.admin import StackedInline
from unfold.decorators import action, display

from accounts.pages.admin_mixins import ChoosesRows, ListAdmin
from chatapi import upstream_keys
from chatapi.catalog import sandbox_last
from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import Deployment, ModelKind, ServedModel
from chatapi.pages.catalog_forms import DeploymentForm, ServedModelForm
from chatapi.pages.catalog_pages import EXPORT_PERMISSIONS, IMPORT_PERMISSIONS
from chatapi.pages.serving_gaps import tell
from chatapi.pages.theme import link
from usage.formatting import usd
from usage.models import Price
from usage.pages.links import page_url

_FIELDS = [
    ("name", "engine"),
    ("base_url", "upstream_model"),
    ("api_key", "api_key_env"),
    "removes_api_key",
    "is_active",
    ("priority", "weight"),
    ("max_concurrent", "retries"),
    ("on_disconnect", "streaming"),
    ("connect_ms", "first_delta_ms"),
    ("between_deltas_ms", "total_ms"),
    "extra_parameters",
    "allow_remote_media",
]


# ---- columns of deployments


@display(
    description="Status", label={"active": "success", "inactive": "warning", "model inactive": "warning"}
)
def status(row: Deployment) -> str:
    if not row.is_active:
        return "inactive"
    return "active" if row.model.is_active else "model inactive"


@display(description="Upstream", ordering="base_url")
def upstream(row: Deployment) -> str:
    return row.base_url or str(row.get_engine_display())


@display(description="API key", ordering="api_key_env")
def key_source(row: Deployment) -> str:
    if row.api_key_env or not row.encrypted_api_key:
        return row.api_key_env or "none"
    return "entered" if upstream_keys.entered(row) else "can't be decrypted"


@display(description="Priority, weight", ordering="priority")
def share(row: Deployment) -> str:
    return f"{row.priority}, {row.weight}"


@display(description="Test")
def test(row: Deployment) -> SafeString:
    return link(reverse("admin:deployment_test", args=[row.pk]), "Test", f"Test {row}")


class DeploymentLine(NamedTuple):
    """A deployment on the page of its model."""

    deployment: Deployment
    status: str
    upstream: str
    key_source: str
    share: str


def _lines(row: ServedModel) -> list[DeploymentLine]:
    deployments = row.deployments.select_related("model").order_by("priority", "name")
    return [
        DeploymentLine(each, status(each), upstream(each), key_source(each), share(each))
        for each in deployments
    ]


class NewDeploymentInline(StackedInline):
    """The first deployment of a new model. Later deployments have their own pages: their forms are long."""

    model = Deployment
    form = DeploymentForm
    extra = 1
    fields = _FIELDS


# ---- pages


@admin.register(ServedModel)
class ServedModelAdmin(ListAdmin):
    """The models that clients can name."""

    change_list_template = "chatapi/models_list.html"
    list_display = [
        "id",
        "kind",
        "status",
        "price",
        "deployments_count",
        "context",
        "longest_answer",
    ]
    number_columns = ("deployments_count", "context", "longest_answer")
    list_filter = ["is_active", "kind"]
    search_fields = ["id"]
    show_full_result_count = False
    form = ServedModelForm
    fields = [
        "id",
        "kind",
        ("context_window", "max_output_tokens"),
        "aliases",
        "deprecated_on",
        ("owned_by", "is_active"),
        "created_at",
    ]
    actions_list = ["import_file", "export_file"]
    actions_detail = ["show_prices"]
    change_form_outer_after_template = "chatapi/model_deployments.html"

    class Media:
        css = {"all": ["usage/operator.css"]}

    def get_inlines(self, request: HttpRequest, obj: ServedModel | None) -> list[Any]:
        return [] if obj else [NewDeploymentInline]

    def render_change_form(
        self, request: HttpRequest, context: Any, add: bool = False, **kwargs: Any
    ) -> HttpResponse:
        """Add the model's deployments to the page."""
        row: ServedModel | None = kwargs.get("obj")
        may_add = request.user.has_perm("chatapi.add_deployment")
        if row and request.user.has_perm("chatapi.view_deployment"):
            context |= {"deployments": _lines(row), "may_add_deployment": may_add}
        response: HttpResponse = super().render_change_form(request, context, add=add, **kwargs)
        return response

    def get_readonly_fields(self, request: HttpRequest, obj: ServedModel | None = None) -> list[str]:
        """Fix the id and the kind of an existing model: its history and its usage reports depend on them."""
        return ["id", "kind", "created_at"] if obj else ["created_at"]

    def has_delete_permission(self, request: HttpRequest, obj: ServedModel | None = None) -> bool:
        """Keep models whose kind has its own usage route; they can be deactivated."""
        is_kept = obj is not None and ModelKind(obj.kind).has_own_usage_route
        return not is_kept and super().has_delete_permission(request, obj)

    def get_ordering(self, request: HttpRequest) -> list[Any]:
        """Return the order of the list, and of selects of a model."""
        return sandbox_last()

    def get_queryset(self, request: HttpRequest) -> QuerySet[ServedModel]:
        """Return the models with their current price and their number of active deployments, in one query."""
        # Subqueries instead of a join: a model has many prices, and a join would multiply the count of its
        # deployments.
        current = Price.objects.filter(model=OuterRef("pk"), effective_from__lte=Now()).order_by(
            "-effective_from"
        )
        names = ("input_per_mtok_nanodollars", "output_per_mtok_nanodollars")
        rows: QuerySet[ServedModel] = super().get_queryset(request)
        active = Count("deployments", filter=Q(deployments__is_active=True))
        return rows.annotate(
            active_deployments=active, **{name: Subquery(current.values(name)[:1]) for name in names}
        )

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        tell(request, form.instance.pk)

    def has_import_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perms(IMPORT_PERMISSIONS)

    def has_export_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perms(EXPORT_PERMISSIONS)

    def has_prices_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("usage.view_price")

    @action(description="Import", icon="upload", permissions=["import"])
    def import_file(self, request: HttpRequest) -> HttpResponse:
        return redirect("admin:catalog_import")

    @action(description="Export", icon="download", permissions=["export"])
    def export_file(self, request: HttpRequest) -> HttpResponse:
        return redirect("admin:catalog_export")

    @action(description="Prices", icon="sell", permissions=["prices"])
    def show_prices(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect(page_url("prices", {"model": object_id}))

    @display(
        description="Status",
        label={"served": "success", "inactive": "warning", "no price": "danger", "no deployment": "danger"},
    )
    def status(self, row: Any) -> str:
        """Return whether clients can use the model, or why not."""
        if not row.is_active:
            return "inactive"
        if not row.active_deployments:
            return "no deployment"
        return "no price" if row.output_per_mtok_nanodollars is None else "served"

    @display(description="Price / Mtok")
    def price(self, row: Any) -> SafeString:
        amounts = (row.input_per_mtok_nanodollars, row.output_per_mtok_nanodollars)
        text = "none" if None in amounts else f"{usd(amounts[0])} in, {usd(amounts[1])} out"
        return link(page_url("prices", {"model": row.pk}), text, f"Prices of {row}: {text}")

    @display(description="Deployments", ordering="active_deployments")
    def deployments_count(self, row: Any) -> int:
        return int(row.active_deployments)

    @display(description="Context window", ordering="context_window")
    def context(self, row: ServedModel) -> str:
        return f"{row.context_window:,}"

    @display(description="Max output tokens", ordering="max_output_tokens")
    def longest_answer(self, row: ServedModel) -> str:
        return f"{row.max_output_tokens:,}" if MODEL_KINDS[ModelKind(row.kind)].has_output else "–"


@admin.register(Deployment)
class DeploymentAdmin(ChoosesRows, ListAdmin):
    """All deployments of all models."""

    change_list_template = "chatapi/deployments_list.html"
    form = DeploymentForm
    list_display = ["name", "served_model", status, upstream, key_source, share, test]
    list_filter = ["is_active", "engine"]
    list_select_related = ["model"]
    search_fields = ["name", "model__id", "base_url", "upstream_model"]
    autocomplete_fields = ["model"]
    show_full_result_count = False
    fields = ["model", *_FIELDS]
    actions_detail = ["test_one"]

    def get_readonly_fields(self, request: HttpRequest, obj: Deployment | None = None) -> list[str]:
        return ["model"] if obj else []

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        tell(request, form.instance.model_id)

    def has_test_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return whether the person may change deployments and, with an id, whether there is one."""
        # The theme calls this without an id to decide whether to show the button at all.
        is_there = object_id is None or self.get_object(request, object_id) is not None
        return is_there and request.user.has_perm("chatapi.change_deployment")

    @action(description="Test", icon="network_check", permissions=["test"])
    def test_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect("admin:deployment_test", int(object_id))

    @display(description="Model", ordering="model_id")
    def served_model(self, row: Deployment) -> SafeString:
        return link(reverse("admin:chatapi_servedmodel_change", args=[row.model_id]), row.model_id)
