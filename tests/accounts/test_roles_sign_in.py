"""Signing in to the console and the admin: the people that may, and the limits of wrong attempts."""

from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.sign_in import attempts
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi.worker.processes import Valkey

CONSOLE = "/console/sign-in"
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def counting(valkey: Valkey, settings: Settings) -> None:
    """Count failed attempts in a Valkey under a prefix of the test's own."""
    settings.STREAMS_URL = f"unix://{valkey.socket}"
    settings.REDIS_KEY_PREFIX = f"test-{uuid4().hex}:"


def sign_in(name: str, password: str = PASSWORD, address: str = "192.0.2.1") -> Any:
    """Return the answer to the form."""
    sent = {"username": name, "password": password, "next": "/admin/"}
    return Client(REMOTE_ADDR=address).post(CONSOLE, sent)


def with_password(user: User) -> User:
    """Set the person's password and return the person."""
    user.set_password(PASSWORD)
    user.save()
    return user


def test_operators_and_members_are_let_in(alice: Person) -> None:
    with_password(alice.user)
    with_password(User.objects.create_superuser("root"))
    with_password(User.objects.create_user("clerk", is_staff=True))
    for name in ("alice", "root", "clerk"):
        answer = sign_in(name)
        assert (answer.status_code, answer.headers["location"]) == (302, "/admin/")


def test_every_refused_sign_in_shows_the_same_error(db: None) -> None:
    with_password(User.objects.create_user("nobody"))
    with_password(User.objects.create_user("gone", is_staff=True, is_active=False))
    with_password(User.objects.create_superuser("root"))
    shown = [
        sign_in(*tried).context["form"].errors
        for tried in (("nobody",), ("gone",), ("unknown",), ("root", "wrong"))
    ]
    assert shown[0]
    assert all(each == shown[0] for each in shown)


def test_a_name_that_no_database_takes_is_asked_for_its_password(db: None) -> None:
    answer = Client().post("/console/sign-in", {"username": "a@acme.example\0"})
    assert answer.status_code == 200


def test_after_too_many_attempts_the_right_password_opens_nothing_either(db: None) -> None:
    with_password(User.objects.create_superuser("root"))
    for _ in range(attempts.MAX_PER_NAME_AND_NETWORK):
        assert sign_in("root", "wrong").status_code == 200
    refused = sign_in("root")
    assert refused.status_code == 429
    assert "Too many attempts. Try again in 10 min." in refused.content.decode()
    assert sign_in("root", address="192.0.2.2").status_code == 302


def test_the_admin_has_no_form_of_its_own(db: None) -> None:
    with_password(User.objects.create_superuser("root"))
    path = "/admin/login/?next=/admin/audit/"
    for answer in (Client().get(path), Client().post(path, {"username": "root", "password": PASSWORD})):
        assert (answer.status_code, answer.headers["location"]) == (
            302,
            "/console/sign-in?next=/admin/audit/",
        )


def test_signing_out_of_the_admin_leads_to_the_page_of_signing_in(db: None) -> None:
    client = client_of(User.objects.create_superuser("root"))
    shown = text(client.get("/admin/"))
    assert ("Home Sign out" in shown, "View site" in shown, "Log out" in shown) == (True, False, False)
    answer = client.post("/admin/logout/", follow=True)
    assert answer.redirect_chain[-1] == ("/console/sign-in?next=/admin/", 302)
    assert 'href="#main"' in answer.content.decode()
    assert '<main id="main"' in answer.content.decode()
    assert client.get("/admin/").status_code == 302


def test_only_pages_of_ours_follow(alice: Person) -> None:
    with_password(alice.user)

    def answer(password: str = PASSWORD, to: str = "/console/") -> Any:
        sent = {"username": "alice", "password": password, "next": to}
        return Client(REMOTE_ADDR="192.0.2.1").post(CONSOLE, sent)

    assert answer().headers["location"] == "/console/"
    assert answer(to="https://elsewhere.example/").headers["location"] == "/console/"
    for _ in range(attempts.MAX_PER_NAME_AND_NETWORK):
        assert answer("wrong").status_code == 200
    refused = answer()
    assert refused.status_code == 429
    assert "Too many attempts. Try again in 10 min." in refused.content.decode()
    assert sign_in("alice").status_code == 429


def test_signing_in_resets_the_count_of_wrong_passwords(db: None) -> None:
    with_password(User.objects.create_superuser("root"))
    for _ in range(2):
        for _ in range(attempts.MAX_PER_NAME_AND_NETWORK - 1):
            assert sign_in("root", "wrong").status_code == 200
        assert sign_in("root").status_code == 302


@pytest.mark.parametrize("password", ["", "\0"])
def test_a_form_that_checks_no_password_resets_no_count(db: None, password: str) -> None:
    with_password(User.objects.create_superuser("root"))
    for _ in range(attempts.MAX_PER_NAME_AND_NETWORK - 1):
        assert sign_in("root", "wrong").status_code == 200
    assert sign_in("root", password).status_code == 200
    assert sign_in("root").status_code == 429


def test_one_network_locks_nobody_out_elsewhere(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_NAME_AND_NETWORK", 2)
    monkeypatch.setattr(attempts, "MAX_PER_NAME", 3)
    with_password(User.objects.create_superuser("root"))
    statuses = [sign_in("root", "wrong").status_code for _ in range(6)]
    assert statuses == [200, 200, 429, 429, 429, 429]
    assert sign_in("root", address="192.0.2.2").status_code == 302


def test_names_and_addresses_have_limits_of_their_own(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_NAME", 3)
    monkeypatch.setattr(attempts, "MAX_PER_NETWORK", 4)
    assert [sign_in("a", address=f"192.0.2.{number}").status_code for number in range(4)] == [
        200,
        200,
        200,
        429,
    ]
    assert [sign_in(f"name-{number}").status_code for number in range(4)] == [200, 200, 200, 429]


def test_spellings_that_a_database_takes_for_one_have_one_limit(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_NAME", 3)
    names = ("i@acme.example", "I@acme.example", "\u0131@acme.example", "i@acme.example")
    statuses = [sign_in(name, address=f"192.0.2.{number}").status_code for number, name in enumerate(names)]
    assert statuses == [200, 200, 200, 429]


def test_without_redis_nobody_signs_in_and_sessions_go_on(alice: Person, settings: Settings) -> None:
    with_password(alice.user)
    inside = Client()
    inside.force_login(alice.user)
    settings.STREAMS_URL = "unix:///nowhere/valkey.sock"
    refused = sign_in("alice")
    assert refused.status_code == 503
    assert "Not available now: Redis, which counts attempts, does not respond." in refused.content.decode()
    assert inside.get("/admin/").status_code == 200
