"""The admin's pages of a key's secret: the form of a rotation, and the page that shows a new secret, once."""

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone

from accounts import keys
from accounts.errors import KeyChanged
from accounts.models import APIKey
from chatapi.pages import key_snippets
from chatapi.pages.key_forms import KEY_CHANGED, RotationForm
from chatapi.snippets import base_url


def rotate(request: HttpRequest, row: APIKey, context_of: Callable[[str], Mapping[str, Any]]) -> HttpResponse:
    """Show the form with the end of the current secret; make a new secret, and show it once.

    `context_of` returns the context of a page with this title.
    """
    # The form has the secret's public part: two people who rotate at once do not end each other's secret.
    form = RotationForm(request.POST or None, initial={"public": row.public})
    if not form.is_valid():
        context = {"form": form, "has_previous": row.has_previous(timezone.now())}
        title = "Rotate an API key"
        return TemplateResponse(request, "chatapi/key_rotation.html", {**context_of(title), **context})
    row.public = form.cleaned_data["public"]
    try:
        secret = keys.rotate(row, form.previous_until)
    except KeyChanged:
        messages.error(request, KEY_CHANGED)
        return redirect("admin:accounts_apikey_change", row.pk)
    return secret_page(request, row, secret, context_of("API key rotated"))


def secret_page(request: HttpRequest, row: APIKey, secret: str, context: Mapping[str, Any]) -> HttpResponse:
    """Show the secret in this response; no message, session or cookie contains it."""
    models = key_snippets.usable_models(row)
    shown = {
        "secret": secret,
        "snippets": key_snippets.snippets(row, secret, base_url(request), models),
        "has_model": bool(models),
    }
    return TemplateResponse(
        request, "chatapi/key_secret.html", {**context, **shown}, headers={"cache-control": "no-store"}
    )
