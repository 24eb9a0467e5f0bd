"""Every way to sign in ends in `AccountAdapter.pre_login`, which decides who may enter."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import pytest
from allauth.socialaccount.models import SocialAccount
from django.http import HttpResponse
from django.test import Client

from accounts.models import Organization
from accounts.sign_in.adapters import AccountAdapter
from chatapi.console import account_urls
from tests.cast import Person
from tests.chatapi.identity_provider import Provider, offer
from tests.chatapi.passkey import Passkey
from tests.chatapi.signing_in import sign_in, who, with_password
from tests.chatapi.test_identity_providers import come

pytestmark = pytest.mark.usefixtures("db", "counting", "trusting")

ROOT = Path(__file__).parents[2]
# Django's and allauth's functions that sign somebody in: `login`, `perform_login`, `complete_signup` ...
SIGNS_IN = re.compile(r"a?(force_)?login(_on_verification)?|(perform|resume|complete)_\w*(login|signup)")
# The only place that calls one. Its function ends in `pre_login`, as the tests below prove.
CALLERS = {("chatapi/console/sign_in.py", "perform_password_login")}


class House:
    """Alice, with a password, a passkey if she uses it, and an account of Acme's identity provider."""

    def __init__(self, alice: Person, acme: Organization, provider: Provider) -> None:
        self.alice, self.provider = with_password(alice.user, email="alice@acme.example"), provider
        self.row = offer(acme, provider, "acme.example")
        SocialAccount.objects.create(provider=str(self.row.pk), uid="way", user=alice.user)
        provider.knows("way", email="alice@acme.example")

    @cached_property
    def passkey(self) -> Passkey:
        return Passkey(self.alice)

    def by_password(self, client: Client) -> None:
        sign_in(client, "alice")

    def by_passkey(self, client: Client) -> None:
        path = "/console/sign-in/passkey"
        asked = client.get(path, headers={"accept": "application/json"}).json()
        challenge = asked["request_options"]["publicKey"]["challenge"]
        client.post(path, {"credential": self.passkey.sign(challenge)})

    def by_provider(self, client: Client) -> None:
        come(self.provider, self.row, "way", client)


# By the names of routes; the first test misses another one.
WAYS: dict[str, Callable[[House, Client], None]] = {
    "account_login": House.by_password,
    "mfa_login_webauthn": House.by_passkey,
    "openid_connect_login": House.by_provider,
    "openid_connect_callback": House.by_provider,
}


def test_each_page_of_signing_in_is_a_way_or_the_step_after_one() -> None:
    pages = {route.name for route in account_urls.urlpatterns if str(route.pattern).startswith("sign-in")}
    assert pages == {*WAYS, "mfa_authenticate"}


@pytest.mark.parametrize("way", dict.fromkeys(WAYS.values()))
def test_every_way_asks_pre_login(
    way: Callable[[House, Client], None],
    alice: Person,
    acme: Organization,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, first, second = House(alice, acme, provider), Client(), Client()
    way(house, first)
    assert who(first) == "alice"
    monkeypatch.setattr(AccountAdapter, "pre_login", lambda *_, **__: HttpResponse("refused", status=403))
    way(house, second)
    assert who(second) == ""


def signing_in(source: bytes) -> Iterator[str]:
    """Yield the functions that sign somebody in and that this module imports or calls."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(names=names):
                found = [each.name for each in names]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                found = [name]
            case _:
                continue
        yield from filter(SIGNS_IN.fullmatch, found)


@pytest.mark.parametrize("source", [
    "login(request, person)", "auth.login(request, person)", "await auth.alogin(request, person)",
    "client.force_login(person)", "from django.contrib.auth import login as begin",
    "perform_login(request, login)", "flows.login.perform_passwordless_login(request, login)",
    "resume_login(request, login)", "complete_social_login(request, login)", "complete_signup(request)",
])  # fmt: skip
def test_a_call_that_signs_in_is_found(source: str) -> None:
    assert len(list(signing_in(source.encode()))) == 1
    assert not list(signing_in(b"def login(self): return redirect_to_login(pre_login(self.login))"))


def test_nothing_else_signs_somebody_in() -> None:
    modules = [path for room in ("accounts", "chatapi") for path in (ROOT / room).rglob("*.py")]
    found = {
        (str(path.relative_to(ROOT)), name) for path in modules for name in signing_in(path.read_bytes())
    }
    assert found == CALLERS
