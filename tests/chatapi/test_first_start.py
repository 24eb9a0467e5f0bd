"""The first start makes something to try, once, and never touches what is there."""

import pytest
from django.contrib.auth import authenticate, get_user_model
from pytest_django.fixtures import Settings

from accounts.authentication import look_up
from accounts.models import APIKey, Organization
from chatapi import catalog
from chatapi.serving import all_in_one, first_start
from chatapi.serving.greeting import base_url, greeting
from chatapi.serving.preflight import CannotStart

pytestmark = pytest.mark.django_db


def test_it_makes_a_live_key_and_an_administrator_that_work() -> None:
    credentials = first_start.set_up()
    assert credentials is not None
    caller = look_up(credentials.api_key)
    assert (caller.is_test, Organization.objects.get(pk=caller.organization_id).name) == (False, "demo")
    administrator = authenticate(username="admin", password=credentials.password)
    assert administrator is not None
    assert administrator.is_superuser
    assert "sandbox" in catalog.load()


def test_it_does_nothing_when_there_is_an_organization() -> None:
    Organization.objects.create(name="Acme")
    assert first_start.set_up() is None
    assert not APIKey.objects.exists()
    assert not catalog.load()


def test_a_key_that_can_not_be_shown_is_not_made() -> None:
    """The key and the password are only printed, and stored nowhere in clear text."""

    def fail(text: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CannotStart, match=r"can't be printed .*No space left on device"):
        all_in_one._set_up(fail)
    assert not Organization.objects.exists()
    shown: list[str] = []
    credentials = all_in_one._set_up(shown.append)
    assert credentials
    assert credentials.api_key in shown[0]


def test_it_leaves_an_administrator_alone_that_is_there() -> None:
    get_user_model().objects.create_superuser("admin", password="their own")
    credentials = first_start.set_up()
    assert credentials is not None
    assert credentials.password is None
    assert authenticate(username="admin", password="their own") is not None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
    ],
)
def test_the_greeting_names_an_address_that_one_can_open(host: str, url: str) -> None:
    assert base_url(host, 80) == url
    assert f"curl -N {url}/v1/chat/completions" in greeting(base_url(host, 80), None)


@pytest.mark.parametrize(
    ("allowed", "opens"), [(["127.0.0.1", "localhost"], True), (["*"], True), (["chat.example.com"], False)]
)
def test_the_greeting_says_where_the_pages_do_not_open(
    settings: Settings, allowed: list[str], opens: bool
) -> None:
    settings.ALLOWED_HOSTS = allowed
    said = greeting("http://127.0.0.1:8000", None)
    assert ("in CHATAPI_ALLOWED_HOSTS (chat.example.com), not under 127.0.0.1.\n" in said) is not opens
