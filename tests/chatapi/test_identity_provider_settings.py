"""An owner's settings of an identity provider: checks, storage, the approval of a domain, and requests to the
provider.
"""

import json
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Thread

import pytest
from allauth.socialaccount.models import SocialAccount
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from accounts.audit.models import AuditEntry
from accounts.models import Organization
from accounts.sign_in import attempts, fetching, openid_connect, providers
from accounts.sign_in.models import EmailDomain, IdentityProvider
from accounts.sign_in.openid_connect import Claims
from tests.admin_pages import client_of
from tests.cast import Person
from tests.chatapi.identity_provider import Provider, offer
from tests.chatapi.signing_in import sign_in

SECRET = "the-clients-secret"
TRICKLING_S = 10
pytestmark = pytest.mark.usefixtures("db", "counting", "trusting")


def settings_of(acme: Organization) -> str:
    return f"/console/{acme.pk}/settings/sign-in"


def test_an_owner_enters_the_provider(provider: Provider, acme: Organization, alice: Person) -> None:
    client, path = client_of(alice.user), settings_of(acme)
    sent = {
        "issuer": provider.issuer,
        "client_id": "chatapi",
        "secret": SECRET,
        "groups_claim": "groups",
        "group_roles": "llm-admins = admin\n\nCN=a,OU=b = viewer",
    }
    assert (
        f"http://testserver/console/sign-in/provider/{acme.pk}/callback" in client.get(path).content.decode()
    )
    assert client.post(path, sent).status_code == 302
    row = IdentityProvider.objects.get()
    assert (row.secret, row.group_roles) == (SECRET, {"llm-admins": "admin", "CN=a,OU=b": "viewer"})
    assert SECRET.encode() not in bytes(row.encrypted_secret)
    assert SECRET not in client.get(path).content.decode()
    assert not AuditEntry.objects.filter(changes__icontains=SECRET).exists()
    assert AuditEntry.objects.filter(object_type="sign_in.identityprovider", organization_id=acme.pk).exists()
    assert client.post(path, sent | {"secret": "", "default_role": "viewer"}).status_code == 302
    assert IdentityProvider.objects.get().secret == SECRET


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"issuer": "http://localhost"}, "begins with https://"),
        ({"issuer": "https://localhost:1"}, "no answer of an OpenID Connect provider"),
        ({"issuer": "PROVIDER/"}, "The provider calls itself"),
        ({"secret": ""}, "This field is required"),
        ({"is_required": "on"}, "First sign in through the provider"),
        ({"group_roles": "admins = king"}, "needs one of owner, admin, member, viewer"),
        ({"group_roles": "admins"}, "needs one of"),
        ({"extra_scopes": 'groups "all"'}, "Use names of scopes, separated by spaces."),
        ({"default_role": "owner"}, "Select a valid choice"),
    ],
)
def test_a_provider_that_can_not_work_is_not_saved(
    provider: Provider, acme: Organization, alice: Person, changes: dict[str, str], words: str
) -> None:
    sent = {"issuer": provider.issuer, "client_id": "chatapi", "secret": SECRET} | changes
    sent["issuer"] = sent["issuer"].replace("PROVIDER", provider.issuer)
    answer = client_of(alice.user).post(settings_of(acme), sent)
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not IdentityProvider.objects.exists()


def test_the_secret_of_a_provider_goes_to_no_other_one(
    provider: Provider, acme: Organization, alice: Person
) -> None:
    offer(acme, provider, "acme.example")
    IdentityProvider.objects.update(issuer="https://before.example")
    client, path = client_of(alice.user), settings_of(acme)
    sent = {"issuer": provider.issuer, "client_id": "chatapi"}
    refused = client.post(path, sent)
    assert refused.status_code == 400
    assert "Enter the secret of the other issuer." in refused.content.decode()
    assert client.post(path, sent | {"secret": "another"}).status_code == 302
    assert IdentityProvider.objects.get().secret == "another"


def test_it_is_required_after_somebody_used_it_and_not_after_it_was_changed(
    provider: Provider, acme: Organization, alice: Person
) -> None:
    row = offer(acme, provider, "acme.example", used_at=timezone.now())
    SocialAccount.objects.create(provider=str(row.pk), uid="18", user=alice.user)
    client, path = client_of(alice.user), settings_of(acme)
    sent = {"issuer": provider.issuer, "client_id": row.client_id, "is_required": "on"}
    assert client.post(path, sent).status_code == 302
    assert IdentityProvider.objects.get().is_required
    for change in ({"client_id": "other"}, {"extra_scopes": "grups"}):
        assert client.post(path, sent | change).status_code == 400
    del sent["is_required"]
    assert client.post(path, sent | {"client_id": "other"}).status_code == 302
    assert IdentityProvider.objects.get().used_at is None
    assert not SocialAccount.objects.exists()


def test_other_scopes_have_to_be_tried_before_the_provider_is_required(
    provider: Provider, acme: Organization, alice: Person
) -> None:
    row = offer(acme, provider, "acme.example", used_at=timezone.now())
    SocialAccount.objects.create(provider=str(row.pk), uid="18", user=alice.user)
    client, sent = client_of(alice.user), {"issuer": provider.issuer, "client_id": row.client_id}
    assert client.post(settings_of(acme), sent | {"extra_scopes": "groups"}).status_code == 302
    assert IdentityProvider.objects.get().used_at is None
    assert SocialAccount.objects.exists()


def test_a_sign_in_that_goes_on_leaves_no_account_of_the_provider_before(
    transactional_db: None, provider: Provider, acme: Organization, alice: Person
) -> None:
    row, client = offer(acme, provider, "acme.example"), client_of(alice.user)
    client.get(settings_of(acme))  # The first request of a process takes long.

    def change() -> int:
        try:
            sent = {"issuer": provider.issuer, "client_id": "other"}
            return client.post(settings_of(acme), sent).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as others:
        with transaction.atomic():
            providers.lock(row.pk, Claims({"iss": row.issuer, "aud": row.client_id}, {}))
            SocialAccount.objects.create(provider=str(row.pk), uid="19", user=alice.user)
            changed = others.submit(change)
            wait([changed], timeout=0.5)
        assert changed.result() == 302
    assert not SocialAccount.objects.exists()


def test_an_operator_approves_a_domain_for_one_organization(
    acme: Organization, alice: Person, charlie: Person, root: Client
) -> None:
    for person in (alice, charlie):
        organization = person.project.organization
        answer = client_of(person.user).post(
            f"{settings_of(organization)}/domains", {"domain": " Acme.example ", "joins_as": "viewer"}
        )
        assert answer.status_code == 302
    first, second = EmailDomain.objects.order_by("pk")
    assert (first.domain, first.approved_at) == ("acme.example", None)
    for row, status in ((first, 302), (second, 200)):
        answer = root.post(f"/admin/sign_in/emaildomain/{row.pk}/change/", {"is_approved": "on"})
        assert answer.status_code == status
    assert "This domain belongs to another organization" in answer.content.decode()
    first.refresh_from_db()
    second.refresh_from_db()
    assert first.approved_at is not None
    assert second.approved_at is None


def test_an_approval_leaves_who_may_join(acme: Organization, root: Client) -> None:
    row = EmailDomain.objects.create(organization=acme, domain="acme.example", joins_as="")
    sent = {"organization": acme.pk, "domain": row.domain, "joins_as": "admin", "is_approved": "on"}
    assert root.post(f"/admin/sign_in/emaildomain/{row.pk}/change/", sent).status_code == 302
    row.refresh_from_db()
    assert (row.joins_as, row.approved_at is None) == ("", False)


def test_an_owner_approves_no_domain(acme: Organization, alice: Person) -> None:
    row = EmailDomain.objects.create(organization=acme, domain="google.example")
    client = client_of(alice.user)
    assert client.get(f"/admin/sign_in/emaildomain/{row.pk}/change/").status_code == 403
    sent = {"joins_as": "viewer", "is_approved": "on"}
    shown = client.post(f"{settings_of(acme)}/domains/{row.pk}", sent, follow=True).content.decode()
    assert "may join as viewer, once the operator has approved the domain." in shown
    row.refresh_from_db()
    assert (row.joins_as, row.approved_at) == ("viewer", None)


def test_the_page_of_a_refused_domain_saves_the_provider(acme: Organization, alice: Person) -> None:
    path = settings_of(acme)
    refused = client_of(alice.user).post(f"{path}/domains", {"domain": "x"})
    assert refused.status_code == 400
    assert f'<form method="post" action="{path}" class="form stack">' in refused.content.decode()


# ---- what is fetched


def test_private_addresses_are_not_asked_unless_the_operator_allows_it(
    provider: Provider, settings: Settings
) -> None:
    openid_connect.discovery(provider.issuer)
    settings.OIDC_PRIVATE_ADDRESSES = False
    with pytest.raises(fetching.NotFetched, match="no answer of an OpenID Connect provider"):
        openid_connect.discovery(provider.issuer)


def test_no_certificate_is_taken_on_trust(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(fetching.NotFetched):
        openid_connect.discovery(provider.issuer)


def test_a_long_answer_is_cut_off(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_BYTES", 100)
    with pytest.raises(fetching.NotFetched):
        openid_connect.discovery(provider.issuer)


def test_a_slow_answer_is_cut_off(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIME_LIMIT_S", -1.0)
    with pytest.raises(fetching.NotFetched):
        openid_connect.discovery(provider.issuer)


@pytest.mark.parametrize("head", [b"x: ", b"content-length: 9999\r\n\r\n", b"connection: close\r\n\r\n"])
def test_bytes_that_trickle_in_do_not_hold_a_thread(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(fetching, "TIME_LIMIT_S", 0.5)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(provider.certificate, provider.key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=trickle, args=(server, tls, head), daemon=True).start()
        began_at = time.monotonic()
        with pytest.raises(fetching.NotFetched):
            openid_connect.discovery(f"https://localhost:{server.getsockname()[1]}")
    assert time.monotonic() - began_at < TRICKLING_S / 2


def trickle(server: socket.socket, tls: ssl.SSLContext, head: bytes) -> None:
    """Answer one request with a byte each tenth of a second."""
    with tls.wrap_socket(server.accept()[0], server_side=True) as client, suppress(OSError):
        client.sendall(b"HTTP/1.1 200 OK\r\n" + head)
        for _ in range(10 * TRICKLING_S):
            time.sleep(0.1)
            client.sendall(b"x")


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (
            {"token_endpoint": "https://a/t", "jwks_uri": "http://a/j", "userinfo_endpoint": "https://a/u"},
            "does not name these endpoints by HTTPS: authorization_endpoint, jwks_uri.",
        ),
        (["token_endpoint"], "There is no answer of an OpenID Connect provider at this URL."),
    ],
)
def test_the_endpoints_that_a_description_lacks_are_named(
    provider: Provider, description: object, reason: str
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(provider.certificate, provider.key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=answer_with, args=(server, tls, description), daemon=True).start()
        with pytest.raises(fetching.NotFetched, match=reason):
            openid_connect.discovery(f"https://localhost:{server.getsockname()[1]}")


def answer_with(server: socket.socket, tls: ssl.SSLContext, document: object) -> None:
    """Answer one request with the document."""
    with tls.wrap_socket(server.accept()[0], server_side=True) as client:
        client.recv(4_096)
        client.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + json.dumps(document).encode())


def test_a_provider_that_is_away_is_a_page(provider: Provider, acme: Organization) -> None:
    row = offer(acme, provider, "acme.example")
    IdentityProvider.objects.update(issuer="https://localhost:1")
    answer = Client().get(f"/console/sign-in/provider/{row.pk}/")
    assert answer.status_code == 502
    assert "does not answer as it should" in answer.content.decode()
    assert Client().get("/console/sign-in/provider/999999/").status_code == 404


def test_an_owner_tries_few_urls(provider: Provider, acme: Organization, alice: Person) -> None:
    client, sent = client_of(alice.user), {"client_id": "chatapi", "secret": SECRET}
    statuses = [
        client.post(settings_of(acme), sent | {"issuer": "https://localhost:1"}).status_code
        for _ in range(attempts.MAX_ISSUERS + 1)
    ]
    assert statuses == [400] * attempts.MAX_ISSUERS + [429]


def test_a_stranger_who_signs_in_keeps_no_owner_from_entering_a_provider(
    provider: Provider, acme: Organization, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_NAME", 1)
    sign_in(Client(REMOTE_ADDR="192.0.2.1"), f"provider of {acme.pk}")
    sent = {"issuer": provider.issuer, "client_id": "chatapi", "secret": SECRET}
    assert client_of(alice.user).post(settings_of(acme), sent).status_code == 302
