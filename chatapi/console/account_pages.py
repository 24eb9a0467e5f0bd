"""A person's own account: password, address, second factors, sessions."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.internal.flows.reauthentication import (
    is_reauthentication_required,
    raise_if_reauthentication_required,
)
from allauth.core.internal.ratelimit import consume_or_429
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe
from redis.exceptions import RedisError
from requests import RequestException

from accounts.audit import recorder
from accounts.sign_in import change_mail, email_addresses, mail, providers
from chatapi.console.browsers import browser_of
from chatapi.console.password_pages import AddressForm

View = Callable[..., HttpResponse]
PURPOSE = "address"
_UNAVAILABLE = {
    "status": 503,
    "title": "Not available now",
    "sentence": "Redis, which counts attempts, does not respond. Try again in a minute.",
}
_NO_PROVIDER = (
    "The identity provider does not answer as it should. Try again, or ask your organization's owner."
)
# OpenID Connect allows 255 characters.
_LONG_SUBJECT = (
    "The identity provider's name for you, the claim “sub”, has more than 191 characters, for which there is "
    "no room here."
)
_NOT_CHANGED_HERE = "Your address can't be changed here."


def guarded(view: View) -> View:
    """Wrap a view of django-allauth: show our page with the status 503 when Redis fails."""

    @never_cache
    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            response = view(request, *args, **kwargs)
            # Rendered here, because a form's fields may read Redis.
            return response.render() if hasattr(response, "render") else response
        except RedisError:
            return render(request, "console/error.html", _UNAVAILABLE, status=503)

    return wrapper


def for_visitors(view: View) -> View:
    """Wrap a view with `guarded`, and limit its requests by IP address.

    Each request begins a session, and may call an identity provider.
    """

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        limited = consume_or_429(request, app="allauth.account", action="login", limit_get=True)
        return limited or view(request, *args, **kwargs)

    return guarded(wrapper)


def from_here(view: View) -> View:
    """Wrap a view: send visitors who come from another site to the sign-in page.

    The other site could sign a visitor in to its own account, and then read there what the visitor enters.
    Old browsers, and all browsers without HTTPS, do not send `Sec-Fetch-Site`, and are not checked.
    """

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            return redirect("account_login")
        return view(request, *args, **kwargs)

    return wrapper


def from_provider(view: View) -> View:
    """Wrap a view with `for_visitors`: show our page when an identity provider fails, with the status 502, or
    names the person in a way that can't be stored.
    """

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return for_visitors(view)(request, *args, **kwargs)
        except ImproperlyConfigured as error:
            # With this name, django-allauth refuses a `sub` that has no room in its column.
            is_too_long = "UID_MAX_LENGTH" in str(error)
        except (RequestException, KeyError, TypeError, ValueError, AttributeError):
            is_too_long = False
        reason, status = (_LONG_SUBJECT, 403) if is_too_long else (_NO_PROVIDER, 502)
        return render(request, "console/sign_in_refused.html", {"reason": reason}, status=status)

    return wrapper


def with_own_address(view: View) -> View:
    """Wrap a view: refuse people with an unconfirmed e-mail address, if the service sends mail.

    Otherwise a person could enter another's address and add a passkey, which would still work after the
    address's owner has set a new password.
    """

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        person: Any = request.user
        if person.is_authenticated and settings.SENDS_EMAIL and not email_addresses.is_own(person):
            messages.error(request, "Confirm your address first.")
            return redirect("console:account")
        return view(request, *args, **kwargs)

    return wrapper


def after_signing_in_again(view: View) -> View:
    """Wrap a view: ask for reauthentication first, unless it was recent.

    A form that was sent before that is dropped. django-allauth would store it in the session, which is in the
    database, with the password in it.
    """

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method == "POST" and is_reauthentication_required(request, app="accounts"):
            return redirect(request.path)
        raise_if_reauthentication_required(request, app="accounts")
        return view(request, *args, **kwargs)

    return wrapper


@require_safe
@never_cache
@login_required
def account_page(request: HttpRequest) -> HttpResponse:
    """Show the person's ways to sign in and their sessions."""
    person: Any = request.user
    factors = list(Authenticator.objects.filter(user=person).order_by("pk"))
    codes = next((each for each in factors if each.type == Authenticator.Type.RECOVERY_CODES), None)
    context = {
        "person": person,
        "is_confirmed": email_addresses.owner_of(person.email) == person,
        "sends_email": settings.SENDS_EMAIL,
        "provider": providers.required_for(person),
        "totp": next((each for each in factors if each.type == Authenticator.Type.TOTP), None),
        "passkeys": [each for each in factors if each.type == Authenticator.Type.WEBAUTHN],
        "codes_left": len(codes.wrap().get_unused_codes()) if codes else None,
        "sessions": [
            (each, browser_of(each.user_agent)) for each in UserSession.objects.purge_and_list(person)
        ],
    }
    return render(request, "console/account.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def address_page(request: HttpRequest) -> HttpResponse:
    """Mail a link that confirms the person's address, or changes it to another one."""
    person: Any = request.user
    if not settings.SENDS_EMAIL or providers.required_for(person) is not None:
        messages.error(request, _NOT_CHANGED_HERE)
        return redirect("console:account")
    raise_if_reauthentication_required(request, app="accounts")
    form = AddressForm(request)
    if not form.is_valid():
        form.initial = {"email": person.email}
        return render(request, "console/address.html", {"form": form}, status=form.status)
    address = form.cleaned_data["email"]
    if email_addresses.is_taken(address, except_of=person):
        url = mail.absolute_url(request, reverse("console:forgotten"))
        is_sent = mail.send("account_exists", address, url=url, host=mail.host(request))
    else:
        content = {"person": person.pk, "from": person.email, "to": address}
        path = reverse("console:confirm_address", args=[email_addresses.sign(PURPOSE, content)])
        url = mail.absolute_url(request, path)
        name = person.get_username()
        is_sent = mail.send("address", address, url=url, name=name, host=mail.host(request))
    return render(request, "console/mail_sent.html", {"address": address, "is_sent": is_sent})


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def confirm_address(request: HttpRequest, token: str) -> HttpResponse:
    """Confirm the link's address when its form is sent; a GET only shows the form, as programs open links in
    mail, too.

    The person who asked for the link has to be signed in, so that nobody confirms their own address for a
    stranger's account.
    """
    content = email_addresses.read(PURPOSE, token) or {}
    person: Any = request.user
    if person.pk == content.get("person") and email_addresses.owner_of(content["to"]) == person:
        return redirect("console:account")  # a second press
    if (
        person.pk != content.get("person")
        or person.email != content["from"]
        or email_addresses.is_taken(content["to"], except_of=person)
    ):
        return render(request, "console/choose_password.html", {"validlink": False}, status=404)
    if providers.required_for(person) is not None:  # perhaps since the mail was sent
        messages.error(request, _NOT_CHANGED_HERE)
        return redirect("console:account")
    if request.method != "POST":
        return render(request, "console/confirm_address.html", {"address": content["to"], "person": person})
    was_confirmed = email_addresses.is_own(person)
    email_addresses.confirm(person, content["to"])
    recorder.record("confirmed an address", person)
    if content["from"] and content["from"].lower() != content["to"]:
        change_mail.notify(person, change_mail.ADDRESS, to=content["from"], was_confirmed=was_confirmed)
    messages.success(request, f"The address {content['to']} is confirmed.")
    return redirect("console:account")
