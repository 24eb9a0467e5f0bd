"""Changes an API key: its name and rights, its secret, its state; revoking it can't be undone."""

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from accounts import keys
from accounts.errors import KeyChanged
from accounts.models import APIKey
from chatapi.console.key_pages import key_of, may_change, secret_page
from chatapi.console.tenancy import Console, Link, page, render
from chatapi.console.tenant_key_forms import KeyForm
from chatapi.pages.key_forms import KEY_CHANGED, NOTHING_TO_ROTATE, RotationForm


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_apikey", keeps_to_projects=True)
def change(request: HttpRequest, console: Console, key_id: int) -> HttpResponse:
    """Show the form of the key's name, rights and expiry; save it."""
    console, row = _changeable(console, key_id)
    if row.revoked_at is not None:
        return _after(request, console, row, "A revoked key can't be changed.", is_done=False)
    title, parent = f"Change {row.name}", _parent(console, row)
    form = KeyForm(request.POST or None, console, instance=row)
    if not form.is_valid():
        context = {"title": title, "form": form, "key": row, "parent": parent}
        return render(request, console, "change_key.html", context, 400 if form.errors else 200)
    form.save_changes()
    return _after(request, console, row, f"The key {row.name} is changed. This holds within a second.")


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_apikey", keeps_to_projects=True)
def rotate(request: HttpRequest, console: Console, key_id: int) -> HttpResponse:
    """Show the form with the end of the current secret; make a new secret, and show it once."""
    console, row = _changeable(console, key_id)
    if row.revoked_at is not None:
        return _after(request, console, row, "A revoked key can't be rotated.", is_done=False)
    if not row.has_secret:
        return _after(request, console, row, NOTHING_TO_ROTATE, is_done=False)
    # The form has the secret's public part, so that two people who rotate at once do not end each other's
    # secret.
    form = RotationForm(request.POST or None, initial={"public": row.public})
    form.fields["until"].label = f"or at this time ({console.organization.time_zone})"
    if not form.is_valid():
        context = {
            "title": f"Rotate {row.name}",
            "form": form,
            "key": row,
            "has_previous": row.has_previous(timezone.now()),
            "parent": _parent(console, row),
        }
        return render(request, console, "rotate_key.html", context)
    row.public = form.cleaned_data["public"]
    try:
        secret = keys.rotate(row, form.previous_until)
    except KeyChanged:
        return _after(request, console, row, KEY_CHANGED, is_done=False)
    return secret_page(request, console, row, secret, "API key rotated")


@require_POST
@page("accounts.change_apikey", keeps_to_projects=True)
def end_previous(request: HttpRequest, console: Console, key_id: int) -> HttpResponse:
    """End the overlap of a rotation now."""
    console, row = _changeable(console, key_id)
    ended = keys.end_previous_secrets(APIKey.objects.filter(pk=row.pk))
    text = "Only the new secret works now." if ended else "There was no old secret."
    return _after(request, console, row, text)


@require_POST
@page("accounts.change_apikey", keeps_to_projects=True)
def switch(request: HttpRequest, console: Console, key_id: int) -> HttpResponse:
    """Disable the key, or enable it again."""
    console, row = _changeable(console, key_id)
    if row.revoked_at is not None:
        text = "A revoked key can't be enabled or disabled."
        return _after(request, console, row, text, is_done=False)
    is_active = request.POST.get("is_active") == "yes"
    keys.set_active(APIKey.objects.filter(pk=row.pk), is_active=is_active)
    return _after(request, console, row, f"The key {row.name} is {'enabled' if is_active else 'disabled'}.")


@require_POST
@page("accounts.change_apikey", keeps_to_projects=True)
def revoke(request: HttpRequest, console: Console, key_id: int) -> HttpResponse:
    """Revoke a key, which can't be undone."""
    console, row = _changeable(console, key_id)
    keys.revoke(APIKey.objects.filter(pk=row.pk))
    text = f"The key {row.name} is revoked. Requests with it fail within a second."
    return _after(request, console, row, text)


def _changeable(console: Console, key_id: int) -> tuple[Console, APIKey]:
    """Return the key, and the console of a page about it."""
    row = key_of(console, key_id)
    if not may_change(console, row):
        raise PermissionDenied
    return console.at(row.project_id), row


def _parent(console: Console, row: APIKey) -> Link:
    return Link(row.name, console.url("key", row.pk), is_current=False)


def _after(
    request: HttpRequest, console: Console, row: APIKey, text: str, *, is_done: bool = True
) -> HttpResponse:
    (messages.success if is_done else messages.error)(request, text)
    return redirect(console.url("key", row.pk))
