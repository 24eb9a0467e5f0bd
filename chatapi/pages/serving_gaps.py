"""Messages about what a model lacks to be served, after the model, a deployment or a price was saved."""

from collections.abc import Iterator
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from chatapi import catalog, upstream_keys
from chatapi.models import Deployment, ServedModel
from chatapi.pages.theme import link
from usage.books import prices


def tell(request: HttpRequest, model_id: str) -> None:
    """Add messages to the next page: what is missing, each with a link, or that the model is served."""
    model = ServedModel.objects.filter(pk=model_id).first()
    if model is None:  # a price outlives its model
        return
    deployments = [row for row in catalog.active_deployments() if row.model_id == model_id]
    without_key = [row for row in deployments if upstream_keys.key_of(row) is None]
    if gaps := list(_gaps(request, model, has_deployment=bool(deployments))):
        text = format_html_join(" ", "{}.", ((gap,) for gap in gaps))
        messages.warning(request, format_html("{} is not served yet. {}", model_id, text))
    elif len(without_key) < len(deployments):
        messages.success(request, f"{model_id} is served.")
    for row in without_key:
        messages.warning(request, _missing_key(row))


def _gaps(request: HttpRequest, model: ServedModel, *, has_deployment: bool) -> Iterator[SafeString | str]:
    """Yield the reasons why requests for the model are not admitted."""
    query = urlencode({"model": model.pk})
    if not model.is_active:
        yield "It is inactive"
    elif not has_deployment:
        url = f"{reverse('admin:chatapi_deployment_add')}?{query}"
        yield _todo(request, "chatapi.add_deployment", url, "Add an active deployment")
    if model.pk not in prices.current():
        yield _todo(
            request, "usage.add_price", f"{reverse('admin:usage_price_add')}?{query}", "Set its price"
        )


def _todo(request: HttpRequest, permission: str, url: str, text: str) -> SafeString | str:
    return link(url, text) if request.user.has_perm(permission) else text


def _missing_key(row: Deployment) -> SafeString:
    page = link(reverse("admin:chatapi_deployment_change", args=[row.pk]), row.name)
    if not row.api_key_env:
        return format_html("Deployment {}: {} Enter it again.", page, upstream_keys.LOST)
    return format_html(
        "Deployment {}: {} is not set in this web process. The workers need it: set it and restart them, or "
        "enter the key on the deployment's page.",
        page,
        row.api_key_env,
    )
