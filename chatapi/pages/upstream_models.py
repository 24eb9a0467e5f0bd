"""Answers the button "List its models" of a deployment's form: the names that the upstream itself lists."""

import asyncio
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST
from unfold.widgets import UnfoldAdminTextInputWidget

from chatapi import upstream_keys
from chatapi.models import Deployment, Engine, base_url_mistake
from usage.pages.filters import is_id

PERMISSIONS = ("chatapi.add_deployment", "chatapi.change_deployment")
_MAX_CHARS = Deployment._meta.get_field("upstream_model").max_length or 0


class UpstreamModelInput(UnfoldAdminTextInputWidget):
    """A text field with a button that lists the upstream's models; `upstream_models.js` works it."""

    deployment_id: int | None = None
    """The saved deployment whose key may be sent; None for a new one."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        return format_html(
            '<div class="upstream-model">{}<span class="upstream-models" data-url="{}" data-deployment="{}">'
            '<button type="button">List its models</button>'
            '<span role="status"></span><span class="names" hidden></span></span></div>',
            super().render(name, value, {**(attrs or {}), "autocomplete": "off"}, renderer),
            reverse("admin:upstream_models"),
            self.deployment_id or "",
        )


class _UpstreamForm(forms.Form):
    """An upstream as a deployment's form names it."""

    engine = forms.ChoiceField(choices=Engine.choices)
    base_url = forms.CharField(max_length=2_000, required=False)
    api_key = forms.RegexField(r"^[!-~]+\Z", max_length=4_096, required=False)

    def mistake(self) -> str:
        """Return the first mistake, empty if there is none; it never contains the key."""
        if not self.is_valid():
            return "Choose the engine, and enter the base URL and a key without spaces."
        sent = self.cleaned_data
        if sent["engine"] == Engine.SANDBOX:
            return "The sandbox has no upstream."
        wrong = base_url_mistake(sent["engine"], sent["base_url"])
        return f"The base URL {wrong}." if wrong else ""


@sensitive_post_parameters("api_key")
@require_POST
def names(request: HttpRequest) -> JsonResponse:
    """Return the names as JSON, or a one-line `error`, both with the status 200, because browsers log others.
    For people who may add or change deployments.

    Without an entered key, that of the saved deployment is sent, and only to the engine and the URL with
    which it was saved: a test of another URL is in the audit log, this question is not.
    """
    if not any(request.user.has_perm(permission) for permission in PERMISSIONS):
        raise PermissionDenied
    form = _UpstreamForm(request.POST)
    if mistake := form.mistake():
        return JsonResponse({"error": mistake})
    sent = form.cleaned_data
    key = sent["api_key"] or _saved_key(request, sent)
    if key is None:
        mistake = "This web process does not have the deployment's key. Enter it in “API key”."
        return JsonResponse({"error": mistake})
    if not connection.in_atomic_block:
        # Released: other requests may need the connection while the call waits for an upstream.
        connection.close()
    # Imported here: they import an HTTP client that no other page of the web process needs.
    from chatapi.wire.upstream.http_api import ANTHROPIC, OPENAI  # noqa: PLC0415
    from chatapi.worker.engines.model_names import NotListedError, model_names  # noqa: PLC0415

    api = ANTHROPIC if sent["engine"] == Engine.ANTHROPIC else OPENAI
    try:
        found = asyncio.run(model_names(api, sent["base_url"], key, _MAX_CHARS))
    except NotListedError as error:
        return JsonResponse({"error": str(error)})
    return JsonResponse({"names": found}, headers={"cache-control": "no-store"})


def _saved_key(request: HttpRequest, sent: dict[str, Any]) -> str | None:
    """Return the key of the saved deployment; empty if there is none or the form names another upstream."""
    pk = request.POST.get("deployment", "")
    if not is_id(pk) or not request.user.has_perm("chatapi.change_deployment"):
        return ""
    row = Deployment.objects.filter(pk=pk, engine=sent["engine"], base_url=sent["base_url"]).first()
    return "" if row is None else upstream_keys.key_of(row)
