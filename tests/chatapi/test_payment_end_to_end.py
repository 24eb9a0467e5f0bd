"""Payments with the real processes: a person pays, Stripe calls, the reaper books and reports."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fake_stripe
from tests.fake_stripe import Stripe
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("payment"), pytest.mark.timeout(240)]

CUSTOMER = "cus_fake1"
# alice owns Acme; her session is printed. Two hours ago Umbrella became a customer, and used something.
MAKE = f"""
import json, random
from datetime import timedelta
from django.contrib.auth.models import User
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from accounts.models import Member, Organization
from tests.usage.billing_months import keys_of, set_prices, use
from usage.database.clock import database_now
from usage.payment.models import StripeCustomer
from usage.database.clock import hour_of
acme = Organization.objects.create(name="Acme")
alice = User.objects.create_user("alice")
Member.objects.create(organization=acme, user=alice, role="owner")
session = SessionStore()
session[SESSION_KEY], session[HASH_SESSION_KEY] = str(alice.pk), alice.get_session_auth_hash()
session[BACKEND_SESSION_KEY] = "accounts.role_permissions.RolePermissions"
session.create()
chance, keys, now = random.Random(1), keys_of("Umbrella"), database_now()
set_prices(chance, keys)
use(chance, keys[0], now - timedelta(hours=2), completion=100)
StripeCustomer.objects.create(
    organization=keys[0].project.organization, customer_id="{CUSTOMER}",
    billed_from=hour_of(now - timedelta(hours=2)), reported_until=hour_of(now - timedelta(hours=2)),
)
print(json.dumps([acme.pk, session.session_key]))
"""
CREDITED = """
from accounts.models import Organization
from usage.books import credit
print(credit.balance(Organization.objects.get(name="Acme")).credited_nanodollars)
"""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@pytest.fixture(scope="module")
def stripe() -> Iterator[Stripe]:
    with fake_stripe.serving() as fake:
        yield fake


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, stripe: Stripe) -> Iterator[Installation]:
    """Start web, worker and reaper with the fake of Stripe."""
    with fake_stripe.installation_with(stripe, tmp_path_factory.mktemp("payment")) as installation:
        yield installation


def ask(url: str, session: str, form: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Return status, body and location of a page that a person asks for."""
    token = "t" * 32
    cookies = f"sessionid={session}; csrftoken={token}"
    body = urllib.parse.urlencode(form | {"csrfmiddlewaretoken": token}).encode() if form else None
    request = urllib.request.Request(url, body, {"Cookie": cookies})
    try:
        with urllib.request.build_opener(NoRedirects).open(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers.get("Location", "")


def deliver(installation: Installation, body: bytes, signature: str) -> int:
    """Send a webhook; return the status."""
    headers = {"Content-Type": "application/json", "Stripe-Signature": signature}
    try:
        request = urllib.request.Request(installation.url + "/stripe/webhook", body, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_person_pays_and_usage_is_reported(installation: Installation, stripe: Stripe) -> None:
    acme, session = json.loads(installation.shell(MAKE))
    page = f"{installation.url}/console/{acme}/credit"
    assert "No payments yet." in ask(page, session)[1]

    status, body, location = ask(page, session, {"preset": "20"})
    assert (status, location.startswith(f"{stripe.url}/pay/")) == (302, True), body
    session_id = location.rpartition("/")[2]
    stripe.pay(session_id)
    back = stripe.sessions[session_id]["success_url"]
    assert back.startswith(page)
    webhook = stripe.webhook("checkout.session.completed", stripe.sessions[session_id])
    for _ in range(2):
        assert deliver(installation, *webhook) == 200
    wait_for(lambda: "The payment is booked." in ask(back, session)[1], "the credit")
    assert re.search(r"Balance.*\$20\.00", ask(back, session)[1], re.DOTALL)
    assert installation.shell(CREDITED).split() == [str(20 * 10**9)]

    wait_for(lambda: len(stripe.events) > 0, "the report of usage")
    found = installation.manage("stripecustomer", "--organization", "Umbrella")
    wait_for(lambda: bool(stripe.total(CUSTOMER)), "the sum")
    assert f"{CUSTOMER} of Umbrella: usage from" in found.stdout


def test_strangers_get_nothing_from_the_route(installation: Installation) -> None:
    assert deliver(installation, b'{"object": "event"}', "t=1,v1=00") == 400
    assert deliver(installation, b" " * 70_000, "t=1,v1=00") == 413
    assert installation.get("/stripe/webhook")[0] == 405
    assert installation.get("/stripe/other")[0] == 404
    assert "whsec" not in installation.log("web")


def test_the_command_names_the_customer(installation: Installation) -> None:
    installation.manage("createkey", "--organization", "Initech")

    def command(*arguments: str) -> tuple[int, str]:
        done = installation.manage("stripecustomer", "--organization", "Initech", *arguments)
        return done.returncode, (done.stdout + done.stderr).splitlines()[-1]

    assert command() == (1, "CommandError: Initech has no customer at Stripe: --customer names it.")
    code, said = command("--customer", "acct_1")
    assert (code, "'acct_1' is not a customer's id" in said) == (2, True)
    assert CUSTOMER in command("--customer", CUSTOMER)[1], "it is Umbrella's"
    code, said = command("--customer", "cus_initech", "--by", "alice")
    assert (code, said[:35]) == (0, "cus_initech of Initech: usage from ")
    audited = (
        "from accounts.audit.models import AuditEntry as E; e = E.objects.latest('pk'); print(e.actor, e)"
    )
    assert "alice (manage.py stripecustomer)" in installation.shell(audited)


def test_without_a_key_nothing_of_stripe_is_imported_or_served(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    modules = "chatapi.asgi, chatapi.urls, chatapi.worker.reaper.process, sys"
    loaded = f"import {modules}; print('stripe' in sys.modules)"
    assert installation.shell(loaded).split() == ["False"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"CHATAPI_STRIPE_API_KEY": ""}, "CHATAPI_STRIPE_API_KEY is not a key of Stripe"),
        ({"CHATAPI_STRIPE_API_KEY": "pk_test_1234567890"}, "CHATAPI_STRIPE_API_KEY is not a key of Stripe"),
        ({"CHATAPI_STRIPE_WEBHOOK_SECRET": ""}, "CHATAPI_STRIPE_WEBHOOK_SECRET is not a webhook's secret"),
        ({"CHATAPI_STRIPE_METER": "a meter"}, "CHATAPI_STRIPE_METER='a meter' is not the event name"),
        (
            {"CHATAPI_STRIPE_API_URL": "http://api.stripe.com"},
            "CHATAPI_STRIPE_API_URL is not an https:// URL",
        ),
        ({"CHATAPI_STRIPE_API_URL": "https://api.stripe.com/v1"}, "CHATAPI_STRIPE_API_URL is not"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_one_line(
    tmp_path: Path, stripe: Stripe, changed: dict[str, str], named: str
) -> None:
    installation = Installation(tmp_path, **(stripe.environment | changed))
    done = installation.manage("serve", "--only", "reaper")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, named in line, "chatapi.E019" in line) == (1, True, True), line
    assert "whsec_" not in done.stderr.replace("with whsec_", "")


def test_a_missing_package_stops_the_start(stripe: Stripe, tmp_path: Path) -> None:
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'stripe' else find(name, *rest)\n"
    )
    installation = Installation(tmp_path / "state", **stripe.environment, PYTHONPATH=str(hide))
    done = installation.manage("serve", "--only", "web")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "Stripe's package is not installed" in done.stderr
