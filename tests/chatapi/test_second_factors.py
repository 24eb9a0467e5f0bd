"""Codes of an app and recovery codes: asked for on every way in, bounded, used once, stored encrypted."""

import re
import time
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import (
    SECRET_SESSION_KEY,
    TOTP,
    format_hotp_value,
    generate_totp_secret,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.template.loader import get_template
from django.test import Client
from pytest_django import Settings

from accounts.audit.models import AuditEntry
from chatapi.console import account_urls
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi.signing_in import PASSWORD, sign_in, who, with_password

SECOND = "/console/sign-in/second-factor"
pytestmark = pytest.mark.usefixtures("db", "counting")


def code_of(secret: str) -> str:
    """Return the code that an app shows now."""
    _, now, _ = yield_hotp_counters_from_time()
    return str(format_hotp_value(hotp_value(secret, now)))


def with_app(user: User) -> str:
    """Give the person a password and an app; return the app's secret."""
    secret = str(generate_totp_secret())
    TOTP.activate(with_password(user), secret)
    return secret


def test_the_code_is_asked_for_after_the_password(alice: Person) -> None:
    secret, client = with_app(alice.user), Client()
    asked = sign_in(client, "alice", next="/admin/audit/")
    assert (asked.status_code, asked.headers["location"], who(client)) == (302, SECOND, "")
    done = client.post(SECOND, {"code": code_of(secret)})
    assert (done.headers["location"], who(client)) == ("/admin/audit/", "alice")
    entry = AuditEntry.objects.get(action="signed in")
    assert (entry.actor, entry.reason) == ("alice", "password, totp")


def test_no_other_way_leads_past_it(alice: Person) -> None:
    with_app(alice.user)
    client = Client()
    sign_in(client, "alice")
    for path in ("/admin/", "/console/", "/console/account", "/admin/login/", "/admin/password_change/"):
        assert client.get(path).status_code == 302, path
    client.post("/admin/login/", {"username": "alice", "password": PASSWORD})
    assert who(client) == ""
    assert "code" not in client.get("/console/account/codes-app/remove", follow=True).request["PATH_INFO"]
    assert Authenticator.objects.filter(type="totp").exists()


def test_a_code_works_once(alice: Person) -> None:
    secret = with_app(alice.user)
    code = code_of(secret)
    first, second = Client(), Client()
    for client in (first, second):
        sign_in(client, "alice")
        client.post(SECOND, {"code": code})
    assert (who(first), who(second)) == ("alice", "")


def test_a_code_works_once_while_a_slower_clock_shows_it(alice: Person, settings: Settings) -> None:
    secret = with_app(alice.user)
    first, second = Client(), Client()
    for client in (first, second):
        sign_in(client, "alice")
    settings.MFA_TOTP_PERIOD = 1
    _, _, ahead = yield_hotp_counters_from_time()
    code = format_hotp_value(hotp_value(secret, ahead))
    first.post(SECOND, {"code": code})
    time.sleep(1.1)  # longer than an app shows the code, and shorter than it is right
    second.post(SECOND, {"code": code})
    assert (who(first), who(second)) == ("alice", "")


def test_wrong_codes_are_counted_and_recorded(alice: Person) -> None:
    secret, client = with_app(alice.user), Client()
    sign_in(client, "alice")
    for _ in range(5):
        assert "Incorrect code" in client.post(SECOND, {"code": "000000"}).content.decode()
    assert "Too many" in client.post(SECOND, {"code": code_of(secret)}).content.decode()
    assert who(client) == ""
    assert AuditEntry.objects.filter(action="failed to sign in", object_name="alice").count() == 5


def test_a_recovery_code_stands_for_the_app_once(alice: Person) -> None:
    with_app(alice.user)
    code = RecoveryCodes.activate(alice.user).get_unused_codes()[3]
    first, second = Client(), Client()
    for client in (first, second):
        sign_in(client, "alice")
        client.post(SECOND, {"code": code})
    assert (who(first), who(second)) == ("alice", "")


def test_an_app_is_set_up_after_the_password_is_asked_for_again(alice: Person) -> None:
    with_password(alice.user)
    client = Client()
    sign_in(client, "alice")
    path = "/console/account/codes-app"
    asked = client.get(path, follow=True)
    assert asked.redirect_chain[-1][0].startswith("/console/account/again/password")
    client.post("/console/account/again/password", {"password": PASSWORD})
    (secret,) = re.findall(r'id="secret" value="(\w+)"', client.get(path).content.decode())
    assert "Incorrect code" in client.post(path, {"code": "000000"}).content.decode()
    kept = Session.objects.get(pk=client.session.session_key).get_decoded()
    assert kept[SECRET_SESSION_KEY]
    assert secret not in str(kept)
    shown = client.post(path, {"code": code_of(secret)}, follow=True)
    (codes,) = re.findall(r"<pre[^>]*>([^<]+)</pre>", shown.content.decode())
    assert len(codes.split()) == 10
    stored = str(list(Authenticator.objects.values_list("data", flat=True)))
    assert secret not in stored
    assert TOTP(Authenticator.objects.get(type="totp")).instance.wrap().validate_code(code_of(secret)) is True
    assert list(
        AuditEntry.objects.filter(action="added a second factor")
        .values_list("reason", flat=True)
        .order_by("reason")
    ) == ["recovery_codes", "totp"]
    assert not AuditEntry.objects.filter(changes__icontains=secret).exists()


def test_a_first_password_is_set_after_the_second_factor_is_asked_for_again(alice: Person) -> None:
    secret = with_app(alice.user)
    alice.user.set_unusable_password()
    alice.user.save()
    client, path, chosen = Client(), "/console/account/password/new", "another horse battery"
    client.force_login(alice.user)
    sent = {"password1": chosen, "password2": chosen}
    for asked in (client.get(path, follow=True), client.post(path, sent, follow=True)):
        assert asked.redirect_chain[-1][0].startswith("/console/account/again/code")
        assert not User.objects.get(pk=alice.user.pk).has_usable_password()
        assert chosen not in str(Session.objects.get(pk=client.session.session_key).get_decoded())
    client.post("/console/account/again/code", {"code": code_of(secret)})
    assert client.post(path, sent).status_code == 302
    assert User.objects.get(pk=alice.user.pk).check_password(chosen)


def test_another_secret_key_opens_nothing(alice: Person, settings: Settings) -> None:
    secret = with_app(alice.user)
    settings.SECRET_KEY = "another" * 8
    client = Client()
    sign_in(client, "alice")
    for each in (secret, "A" * 32):  # the second is what a secret of zeros would be
        assert "Incorrect code" in client.post(SECOND, {"code": code_of(each)}).content.decode()


def test_a_superuser_removes_a_lost_factor(alice: Person, root: Client) -> None:
    with_app(alice.user)
    row = Authenticator.objects.get()
    path = f"/admin/mfa/authenticator/{row.pk}/"
    assert "Second factors | chatapi" in text(root.get("/admin/mfa/authenticator/"))
    shown = root.get(f"{path}change/").content.decode()
    assert "alice" in shown
    assert "Authenticator app" in shown
    assert row.data["secret"] not in shown
    assert client_of(alice.user).get(f"{path}change/").status_code == 403
    root.post(f"{path}delete/", {"post": "yes"})
    assert not Authenticator.objects.exists()
    assert AuditEntry.objects.filter(action="removed a second factor", object_name="alice").exists()
    client = Client()
    sign_in(client, "alice")
    assert who(client) == "alice"


def test_without_redis_a_code_is_refused_with_a_page(alice: Person, settings: Settings) -> None:
    secret, client = with_app(alice.user), Client()
    sign_in(client, "alice")
    settings.STREAMS_URL = "unix:///nowhere/valkey.sock"
    settings.CACHES = {"default": settings.CACHES["default"] | {"KEY_PREFIX": "other"}}
    answer = client.post(SECOND, {"code": code_of(secret)})
    assert answer.status_code == 503
    assert "Redis" in answer.content.decode()
    assert who(client) == ""


def test_a_visitor_begins_few_sessions(settings: Settings) -> None:
    statuses = [
        Client().get("/console/sign-in/passkey", headers={"accept": "application/json"}).status_code
        for _ in range(31)
    ]
    assert statuses == [200] * 30 + [429]
    assert Session.objects.count() == 30


# ---- which of django-allauth's pages there are


def test_every_page_of_allauth_has_our_look(settings: Settings) -> None:
    """A page without a template of ours would have allauth's, which is no page of the console."""
    own = str(settings.BASE_DIR / "chatapi" / "templates")
    found = set()
    for route in account_urls.urlpatterns:
        view: Any = route.callback
        while not hasattr(view, "view_class") and hasattr(view, "__wrapped__"):
            view = view.__wrapped__
        name = getattr(getattr(view, "view_class", None), "template_name", None)
        if name and route.name != "end_sessions":  # which only takes a form
            found.add(name)
            origin = str(get_template(name).origin)  # type: ignore[attr-defined]
            assert origin.startswith(own), f"{route.name}: {name}"
    assert len(found) > 8


def test_no_other_page_of_allauth_is_there() -> None:
    paths = ("login/", "signup/", "email/", "logout/", "password/reset/", "2fa/", "social/connections/")
    for path in paths:
        for root in ("/accounts/", "/console/", "/console/account/", "/"):
            assert Client().get(root + path).status_code == 404, root + path
    names = {pattern.name for pattern in account_urls.urlpatterns}
    assert not {"account_signup", "account_logout", "socialaccount_connections"} & names


@pytest.mark.parametrize("route", account_urls.urlpatterns, ids=lambda route: str(route.name))
def test_a_visitor_sees_no_page_of_an_account(route: Any) -> None:
    path = "/console/" + re.sub(r"<\w+:\w+>", "1", str(route.pattern))
    ask = Client().post if route.name == "end_sessions" else Client().get
    answer = ask(path, follow=True)
    if str(route.pattern).startswith("sign-in/provider/"):
        assert answer.status_code == 404, "there is no such provider"
    else:
        assert answer.request["PATH_INFO"] == "/console/sign-in"
