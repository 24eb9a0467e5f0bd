"""Secrets that people and operators enter or are given: none is anywhere in an installation, also when it was
used in a wrong way. Those of upstreams: test_upstream_keys_end_to_end.py; keys and prompts: test_canaries.py.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest
import requests
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time

from tests import canaries, fake_stripe, mail_server
from tests.chatapi.form_session import FormSession
from tests.chatapi.http_client import Client
from tests.chatapi.identity_provider import Provider
from tests.fake_stripe import Stripe
from tests.installation import Installation, wait_for
from tests.mail_server import Mailbox

pytestmark = [pytest.mark.xdist_group("secret_canaries"), pytest.mark.timeout(180)]

PASSWORD, OTHER_PASSWORD, PROMPT = (f"canary{uuid4().hex}" for _ in range(3))
OWNER, VIEWER, GUEST = (f"{name}@tests.example" for name in ("owner", "viewer", "guest"))
PEOPLE = f"""
from django.contrib.auth.models import User
from django.utils import timezone
from accounts.models import Member, Organization
from accounts.sign_in import email_addresses
from accounts.sign_in.models import EmailDomain
organization = Organization.objects.get(name="Tests")
for name, role in (("{OWNER}", "owner"), ("{VIEWER}", "viewer")):
    user = User.objects.create_user(name, email=name, password="{PASSWORD}")
    Member.objects.create(organization=organization, user=user, role=role)
    email_addresses.confirm(user, user.email)
EmailDomain.objects.create(organization=organization, domain="provided.example", approved_at=timezone.now())
print(organization.pk, organization.projects.get().pk)
"""
CODES_APP = "/console/account/codes-app"
ADMIN_KEY = ("createkey", "--organization", "Tests", "--admin", "--manages-as", "owner", "--json")


@pytest.fixture(scope="module")
def stripe() -> Iterator[Stripe]:
    with fake_stripe.serving() as fake:
        yield fake


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """Run an identity provider."""
    with Provider(tmp_path_factory.mktemp("provider")).running() as provider:
        yield provider


@pytest.fixture(scope="module")
def mailbox(certificate: Path) -> Iterator[Mailbox]:
    """Run a mail server that asks for a password."""
    with mail_server.serving(tls="starttls", certificate=certificate) as mailbox:
        yield mailbox


@pytest.fixture(scope="module")
def installation(
    tmp_path_factory: pytest.TempPathFactory,
    stripe: Stripe,
    provider: Provider,
    mailbox: Mailbox,
    certificate: Path,
) -> Iterator[Installation]:
    """Start an installation that logs as much as possible, sends mail and takes payments."""
    trusted = tmp_path_factory.mktemp("trusted") / "certificates"
    trusted.write_bytes(certificate.read_bytes() + provider.certificate.read_bytes())
    password = quote(mail_server.PASSWORD, safe="")
    with Installation(
        tmp_path_factory.mktemp("secrets"),
        CHATAPI_LOG_LEVEL="DEBUG",
        CHATAPI_METRICS_TOKEN=f"canary{uuid4().hex}",
        CHATAPI_EMAIL_URL=f"smtp://{quote(mail_server.USER)}:{password}@127.0.0.1:{mailbox.port}?tls=starttls",
        CHATAPI_EMAIL_FROM="chatapi@example.com",
        CHATAPI_SIGN_UP="open",
        CHATAPI_OIDC_PRIVATE_ADDRESSES="on",
        CHATAPI_STREAM_TTL_MS="3000",
        SSL_CERT_FILE=str(trusted),
        **stripe.environment,
    ) as installation:
        installation.start({})
        installation.start_reaper()
        yield installation
        installation.verify()


@pytest.fixture(scope="module")
def home(installation: Installation) -> tuple[str, str]:
    """Make the owner of Tests; return the path of its pages, and its project's number."""
    organization, project = installation.shell(PEOPLE).split()
    return f"/console/{organization}", project


@pytest.fixture(scope="module")
def owner(installation: Installation, home: tuple[str, str]) -> FormSession:
    """Sign in as the owner."""
    return signed_in(installation, OWNER)


def signed_in(installation: Installation, name: str) -> FormSession:
    """Return the session of a person, whose password is wrong at first, and was asked for again."""
    session = FormSession(installation.url)
    for password in (OTHER_PASSWORD, PASSWORD):
        page = session.post("/console/sign-in", username=name, password=password)
    assert "Start" in page
    for password in (OTHER_PASSWORD, PASSWORD):
        session.post("/console/account/again/password", password=password)
    return session


def assert_nowhere(installation: Installation, *words: str) -> None:
    """Search the whole installation for these words, also in hexadecimal digits."""
    forms = [form for word in words for form in (word.encode(), word.encode().hex().encode())]
    with canaries.open_valkey(installation) as valkey:
        assert canaries.found(forms, installation, valkey) == []


def secret_on(page: str) -> str:
    """Return the secret that the page shows once."""
    (secret,) = re.findall(r'id="secret" value="([^"]+)"', page)
    return str(secret)


def newest_link(mailbox: Mailbox, to: str) -> str:
    """Wait for mail to this address; return the path of its link."""

    def found() -> list[str]:
        texts = [mail.get_content() for mail in mailbox.messages if mail["to"] == to]
        return [link for text in texts for link in re.findall(r"^http://\S+", text, re.MULTILINE)]

    wait_for(lambda: bool(found()), f"mail to {to}")
    path = urlsplit(found()[-1]).path
    mailbox.messages.clear()
    return path


def token_of(link: str) -> str:
    """Return the last part of the link's path."""
    return link.rstrip("/").rpartition("/")[2]


def choose_password(visitor: FormSession, link: str, password: str) -> None:
    """Open the link, which leads to a URL without its token, and enter a bad password and then this one."""
    page = link.replace(token_of(link), "set-password")
    visitor.get(link)
    for typed in (password[:3], password):
        shown = visitor.post(page, new_password1=typed, new_password2=password)
        assert "This link does not work" not in shown


def test_secrets_of_webhooks(installation: Installation, owner: FormSession, home: tuple[str, str]) -> None:
    path = f"{home[0]}/webhooks"
    first = secret_on(owner.post(f"{path}/new", url="https://canary.example.com/hook"))
    (hook,) = set(re.findall(rf"{path}/(\d+)", owner.get(path)))
    (known,) = re.findall(r'name="secret_id" value="(\w+)"', owner.get(f"{path}/{hook}"))
    second = secret_on(owner.post(f"{path}/{hook}/rotate", f"{path}/{hook}", secret_id=known))
    owner.post(f"{path}/{hook}/test", f"{path}/{hook}")
    wait_for(lambda: "retrying" in owner.get(f"{path}/{hook}"), "an attempt")
    secrets = [secret.removeprefix("whsec_") for secret in (first, second)]
    assert_nowhere(installation, *secrets)


def test_secrets_of_identity_providers(
    installation: Installation, owner: FormSession, home: tuple[str, str], provider: Provider
) -> None:
    path, row = f"{home[0]}/settings/sign-in", home[0].rpartition("/")[2]
    way_in = f"{installation.url}/console/sign-in/provider/{row}/"
    client_id, secret = provider.register(f"{way_in}callback")
    sent = {
        "client_id": client_id,
        "secret": secret,
        "groups_claim": "groups",
        "default_role": "viewer",
    }
    for issuer in ("http://not.example.com", "https://localhost:1", provider.issuer):
        page = owner.post(path, issuer=issuer, **sent)
        assert secret not in page
    assert f"{way_in}callback" in page
    provider.knows("1", email="erin@provided.example", email_verified=True)
    with requests.Session() as visitor:
        away = visitor.get(way_in, allow_redirects=False)
        back = provider.authorize(away.headers["location"], "1")
        assert "Start" in visitor.get(installation.url + back).text
    assert_nowhere(installation, secret)


@pytest.mark.usefixtures("home")
def test_an_app_of_codes_that_is_being_set_up(installation: Installation) -> None:
    secret = secret_on(signed_in(installation, VIEWER).get(CODES_APP))
    assert_nowhere(installation, secret)


def test_second_factors(installation: Installation, owner: FormSession) -> None:
    secret = secret_on(owner.get(CODES_APP))
    owner.post(CODES_APP, "/console/account", code="000000")  # which keeps the secret
    _, now, _ = yield_hotp_counters_from_time()
    code = str(format_hotp_value(hotp_value(secret, now)))
    page = owner.post(CODES_APP, "/console/account", code=code)
    (codes,) = re.findall(r"<pre[^>]*>([^<]+)</pre>", page)
    visitor = FormSession(installation.url)
    asked = visitor.post("/console/sign-in", username=OWNER, password=PASSWORD)
    assert "Second factor" in asked
    assert "Start" in visitor.post("/console/sign-in/second-factor", code=codes.split()[0])
    assert_nowhere(installation, secret, *codes.split())


def test_links_and_passwords(
    installation: Installation, owner: FormSession, home: tuple[str, str], mailbox: Mailbox
) -> None:
    owner.post(f"{home[0]}/members/invite", email=GUEST, role="viewer", sees="all")
    invitation = newest_link(mailbox, GUEST)
    choose_password(FormSession(installation.url), invitation, PASSWORD)
    visitor = FormSession(installation.url)
    visitor.post("/console/password/forgotten", email=GUEST)
    reset = newest_link(mailbox, GUEST)
    choose_password(visitor, reset, OTHER_PASSWORD)
    assert_nowhere(installation, token_of(invitation), token_of(reset))
    visitor.post("/console/sign-up", email="new@tests.example")
    sign_up = newest_link(mailbox, "new@tests.example")
    visitor.get(sign_up)
    assert_nowhere(installation, token_of(sign_up), PASSWORD, OTHER_PASSWORD)


def test_what_a_mail_server_and_stripe_take(
    installation: Installation, owner: FormSession, home: tuple[str, str], mailbox: Mailbox, stripe: Stripe
) -> None:
    visitor = FormSession(installation.url)
    visitor.post("/console/password/forgotten", email=OWNER)
    wait_for(lambda: mailbox.passwords != [], "the mail server's password")
    owner.post(f"{home[0]}/credit", amount="4")
    owner.post(f"{home[0]}/credit", amount="50")
    client = Client(installation.url, "")
    signed = {"stripe-signature": f"t=1,v1={fake_stripe.WEBHOOK_SECRET}"}
    client.send("POST", "/stripe/webhook", fake_stripe.API_KEY.encode(), **signed)
    for command in ("doctor", "check"):
        done = installation.manage(command)
        (installation.folder / f"{command}.log").write_text(done.stdout + done.stderr)
    secrets = (
        fake_stripe.API_KEY,
        fake_stripe.WEBHOOK_SECRET,
        installation.environment["CHATAPI_METRICS_TOKEN"],
    )
    assert_nowhere(installation, mail_server.PASSWORD, quote(mail_server.PASSWORD, safe=""), *secrets)


def test_keys_that_the_management_api_makes(installation: Installation, home: tuple[str, str]) -> None:
    made = json.loads(installation.manage(*ADMIN_KEY).stdout)["key"]
    admin = Client(installation.url, made)
    named = json.dumps({"name": "canary"}).encode()
    made_by_it = admin.send("POST", "/v1/organization/admin_api_keys", named).json["value"]
    service = f"/v1/organization/projects/{home[1]}/service_accounts"
    account = admin.send("POST", service, named).json
    further = admin.send("POST", f"{service}/{account['id']}/api_keys", named).json["value"]
    secrets = [made, made_by_it, account["api_key"]["value"], further]
    for key in secrets:
        client = Client(installation.url, key)
        client.send("GET", "/v1/organization/projects")
        client.send("POST", "/v1/organization/admin_api_keys", json.dumps({"name": key, key: key}).encode())
        client.send("GET", f"/v1/organization/projects/{key}?after={key}")
        client.send("DELETE", f"/v1/organization/admin_api_keys/{key}")
    assert_nowhere(installation, *(part for key in secrets for part in (key, key.rpartition("_")[2])))


def test_keys_and_prompts_of_the_playground(
    installation: Installation, owner: FormSession, home: tuple[str, str]
) -> None:
    path = f"{home[0]}/playground"
    body = {"model": "sandbox", "messages": [{"role": "user", "content": PROMPT}]}
    keys = []
    for _ in range(2):  # the second time the key gets another secret
        keys.append(json.loads(owner.post(f"{path}/key", path, project=home[1]))["key"])
        answer = Client(installation.url, keys[-1]).send(
            "POST", "/v1/chat/completions", json.dumps(body).encode()
        )
        assert answer.status == 200
    for text in (json.dumps(body), f"[{PROMPT}"):
        owner.post(f"{path}/code", path, protocol="chat", dialect="openai", body=text)
    owner.get(f"{path}?model={PROMPT}")
    with canaries.open_valkey(installation) as valkey:
        wait_for(lambda: canaries.is_forgotten(valkey), "all streams to be forgotten")
    assert_nowhere(installation, PROMPT, *keys, *(key.rpartition("_")[2] for key in keys))
