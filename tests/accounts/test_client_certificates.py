"""Client certificates: which ones a key accepts, and how they come from a proxy."""

import base64
import ssl
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries, Settings

from accounts import certificates, client_certificates
from accounts.authentication import look_up
from accounts.models import Certificate
from tests.cast import Person
from tests.client_certificates import HEADER, PROXY, Made, make

CA, OTHER = make("authority"), make("another authority")
LEAF = CA.issue()
CODE = "certificate_required"
FOR_SERVERS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
ALL = ("basic", "key_usage", "policy")
_POINT = CA.certificate.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
BROKEN_KEY = ssl.DER_cert_to_PEM_cert(
    CA.certificate.public_bytes(Encoding.DER).replace(_POINT, b"\x04" + b"\x01" * 64)
)
"""A certificate whose key is on no curve."""


@pytest.fixture(autouse=True)
def proxy(settings: Settings) -> None:
    settings.CLIENT_CERTIFICATE_HEADER, settings.TRUSTED_PROXIES = HEADER, [PROXY]


def activate(person: Person, *authorities: Made, in_project: bool = False) -> list[Certificate]:
    """Require a client certificate for the person's organization, or for the project."""
    organization_id = person.project.organization_id
    rows = [certificates.create(organization_id, each.pem, f"CA {at}") for at, each in enumerate(authorities)]
    certificates.activate(organization_id, rows, person.project if in_project else None)
    return rows


def ask(person: Person, sent: str | None, peer: str = PROXY, path: str = "/v1/key", **more: str) -> Any:
    headers = {"authorization": f"Bearer {person.key}", **more} | ({} if sent is None else {HEADER: sent})
    return Client(REMOTE_ADDR=peer).get(path, headers=headers)


def refusal(answer: Any) -> str:
    """Return the text of a refusal."""
    assert answer.status_code == 401, answer.content
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == (CODE, "invalid_request_error")
    return str(error["message"])


# ---- what counts


@pytest.mark.parametrize(
    "sent",
    [
        LEAF.header,
        LEAF.escaped,
        CA.issue(key=rsa.generate_private_key(65_537, 2_048)).header,
        CA.issue(alternative=x509.SubjectAlternativeName([x509.DNSName("client.example")])).header,
    ],
    ids=count(1),  # the values are new in each process
)
def test_a_certificate_of_an_active_authority_is_accepted(alice: Person, sent: str) -> None:
    activate(alice, OTHER, CA)
    for _ in range(2):  # the second one is remembered
        assert ask(alice, sent).status_code == 200


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (None, "none was sent"),
        ("", "none was sent"),
        ("::", "none was sent"),
        (":{http.request.tls.client.certificate_der_base64}:", "none was sent"),
        (OTHER.issue().header, "no active certificate that is valid now has issued"),
        (make("authority").issue().header, "no active certificate"),  # of the same name
        (make("intermediate", CA).issue().header, "no active certificate"),
        (CA.header, "no active certificate"),
        (make("client").issue().header, "no active certificate"),
        (CA.issue(days=(-9, -1)).header, "has expired"),
        (CA.issue(days=(1, 9)).header, "is not valid yet"),
        (CA.issue(usage=FOR_SERVERS).header, "client auth"),
        (make("client", CA, key_usage=None, basic=None).header, "client auth"),
        ("garbage", "is not one X.509 certificate"),
        (":Z2FyYmFnZQ==:", "is not one X.509 certificate"),
        (":" * 9, "is not one X.509 certificate"),
        (LEAF.header[:-1], "is not one X.509 certificate"),
        (f"{LEAF.header}, {LEAF.header}", "is not one X.509 certificate"),
        (LEAF.escaped * 2, "is not one X.509 certificate"),
        (f"{LEAF.escaped},", "is not one X.509 certificate"),
        (f"{LEAF.escaped}, ::", "is not one X.509 certificate"),
        (f"x, {LEAF.escaped}", "is not one X.509 certificate"),
        (LEAF.header[:200] + LEAF.header[-40:], "is not one X.509 certificate"),
        ("A" * 100_000, "is not one X.509 certificate"),
        ("%FF%00" * 50, "is not one X.509 certificate"),
    ],
    ids=count(1),  # the values are new in each process
)
def test_everything_else_is_refused_with_the_reason(alice: Person, sent: str | None, words: str) -> None:
    activate(alice, CA)
    for _ in range(2):
        message = refusal(ask(alice, sent))
        assert words in message
        assert "needs a client certificate of its organization or project" in message


def test_a_changed_byte_is_refused_and_breaks_nothing(alice: Person) -> None:
    activate(alice, CA)
    der = LEAF.certificate.public_bytes(Encoding.DER)
    for place in range(0, len(der), 3):
        changed = der[:place] + bytes([der[place] ^ 0x41]) + der[place + 1 :]
        refusal(ask(alice, f":{base64.b64encode(changed).decode()}:"))


@pytest.mark.parametrize("peer", ["198.51.100.1", "", "127.0.0.1"])
def test_a_header_that_no_trusted_proxy_wrote_does_not_count(alice: Person, peer: str) -> None:
    activate(alice, CA)
    assert "did not come through a proxy" in refusal(ask(alice, LEAF.header, peer))
    assert ask(alice, LEAF.header).status_code == 200
    assert "did not come through a proxy" in refusal(ask(alice, LEAF.header, peer))


def test_without_the_setting_each_request_is_refused(alice: Person, settings: Settings) -> None:
    activate(alice, CA)
    settings.CLIENT_CERTIFICATE_HEADER = ""
    assert "has to set CHATAPI_CLIENT_CERTIFICATE_HEADER" in refusal(ask(alice, LEAF.header))


def test_an_expired_authority_refuses_everything(alice: Person) -> None:
    old = make("old", days=(-9, 9))
    leaf = old.issue(days=(-5, 30))
    activate(alice, old)
    assert ask(alice, leaf.header).status_code == 200
    expired = make("old", days=(-9, -1), key=old.key)
    Certificate.objects.update(content=expired.pem)
    assert "that is valid now" in refusal(ask(alice, leaf.header))


def test_a_header_is_valid_for_its_own_authorities_only(alice: Person, charlie: Person) -> None:
    """The remembered result of one organization says nothing about another one."""
    activate(alice, CA)
    activate(charlie, OTHER)
    for _ in range(2):
        assert ask(alice, LEAF.header).status_code == 200
        refusal(ask(charlie, LEAF.header))


# ---- for whom


def test_a_certificate_of_a_project_is_for_its_keys_only(alice: Person, bob: Person) -> None:
    (row,) = activate(alice, CA, in_project=True)
    assert ask(bob, None).status_code == 200
    refusal(ask(alice, None))
    certificates.activate(row.organization_id, [row])
    refusal(ask(bob, None))
    assert ask(bob, LEAF.header).status_code == ask(alice, LEAF.header).status_code == 200
    certificates.deactivate(row.organization_id, [row])
    assert ask(bob, None).status_code == 200
    refusal(ask(alice, None))
    certificates.deactivate(row.organization_id, [row], alice.project)
    assert ask(alice, None).status_code == 200


def test_a_project_accepts_those_of_its_organization_too(alice: Person, bob: Person) -> None:
    activate(alice, CA)
    activate(alice, OTHER, in_project=True)
    sent = LEAF.header, OTHER.issue().header
    assert [ask(alice, each).status_code for each in sent] == [200, 200]
    assert [ask(bob, each).status_code for each in sent] == [200, 401]


@pytest.mark.parametrize("is_for_all", [True, False])
def test_a_certificate_that_moves_during_the_look_up_is_needed(alice: Person, is_for_all: bool) -> None:
    """It becomes active for the organization instead of for the project, or the other way round."""
    (row,) = activate(alice, CA, in_project=is_for_all)
    to_project = [] if is_for_all else [alice.project]
    moves = [partial(certificates.change, row, row.name, is_active=is_for_all, projects=to_project)]

    def read(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        found = execute(sql, *arguments)
        if moves and 'FROM "accounts_certificate' in sql:
            moves.pop()()
        return found

    with connection.execute_wrapper(read):
        assert look_up(alice.key).certificates == (CA.certificate,)
    assert not moves


def test_another_organization_is_not_concerned(alice: Person, charlie: Person) -> None:
    activate(alice, CA)
    assert ask(charlie, None).status_code == 200
    activate(charlie, CA, in_project=True)
    certificates.deactivate(alice.project.organization_id, [*Certificate.objects.all()])
    refusal(ask(charlie, None))
    assert ask(alice, None).status_code == 200


def test_keys_without_certificates_cost_no_query_more(
    alice: Person, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    certificates.create(alice.project.organization_id, CA.pem)
    with django_assert_num_queries(1):
        assert look_up(alice.key).certificates == ()
    activate(alice, OTHER)
    with django_assert_num_queries(2):
        assert look_up(alice.key).certificates == (OTHER.certificate,)


def test_anthropics_clients_get_their_error(alice: Person) -> None:
    activate(alice, CA)
    refused = ask(alice, None, path="/v1/models", **{"anthropic-version": "2023-06-01"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")


def test_the_address_is_checked_first(alice: Person) -> None:
    activate(alice, CA)
    type(alice.api_key).objects.update(allowed_ips=["203.0.113.7"])
    assert ask(alice, None).json()["error"]["code"] == "ip_not_authorized"


# ---- the rows


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "one X.509 certificate as PEM"),
        ("garbage", "one X.509 certificate as PEM"),
        (CA.pem + OTHER.pem, "one X.509 certificate as PEM"),
        (CA.pem + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "without a private key"),
        (CA.pem.replace("M", "N", 3), "one X.509 certificate as PEM"),
        (CA.pem + " " * 20_000, "at most 16,384 bytes"),
        ("\x00" * 100, "one X.509 certificate as PEM"),
        (LEAF.pem, "do not say CA:TRUE"),
        (make("a", basic=None).pem, "do not say CA:TRUE"),
        (make("a", key_usage=None).pem, "include keyCertSign"),
        (make("a", subject_key=None).pem, "no subject key identifier"),
        (make("a", days=(-9, 0)).pem, "expires within a day"),
        (make("a", key=rsa.generate_private_key(65_537, 1_024)).pem, "RSA of 2048 to 8192 bits"),
        (make("a", key=ed25519.Ed25519PrivateKey.generate()).pem, "RSA of 2048 to 8192 bits"),
        (make("a", key=ec.generate_private_key(ec.SECP256K1())).pem, "RSA of 2048 to 8192 bits"),
        (make("a", public=rsa.RSAPublicNumbers(2**64 + 1, 2**3_071 + 1).public_key()).pem, "exponent below"),
        (make("a", public=rsa.RSAPublicNumbers(65_537, 2**9_000 + 1).public_key()).pem, "2048 to 8192 bits"),
        (BROKEN_KEY, "RSA of 2048 to 8192 bits"),
        (make("a", critical=()).pem, "could be accepted: invalid extension: 2.5.29.19"),
        (make("a", purpose=FOR_SERVERS).pem, "could be accepted: Neither EKU nor anyEKU"),
        (make("a", policy=x509.InhibitAnyPolicy(0), critical=ALL).pem, "unaccounted-for critical extensions"),
    ],
    ids=count(1),  # the values are new in each process
)
def test_what_could_issue_nothing_is_not_stored(alice: Person, content: str, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        certificates.create(alice.project.organization_id, content)
    assert words in refused.value.message_dict["certificate"][0]
    assert not Certificate.objects.exists()


@pytest.mark.parametrize(
    "key", [rsa.generate_private_key(65_537, 2_048), ec.generate_private_key(ec.SECP521R1())]
)
def test_what_is_stored_can_issue(alice: Person, key: Any) -> None:
    authority = make("a", key=key)
    activate(alice, authority)
    assert ask(alice, authority.issue().header).status_code == 200


def test_an_intermediate_authority_is_one(alice: Person) -> None:
    between = make("between", CA)
    activate(alice, between)
    assert ask(alice, between.issue().header).status_code == 200
    refusal(ask(alice, LEAF.header))


def test_only_the_certificate_is_stored(alice: Person) -> None:
    row = certificates.create(alice.project.organization_id, f"subject=CN\n{CA.pem}\n trailing", "office")
    assert (row.content, len(row.fingerprint)) == (CA.pem, 64)
    with pytest.raises(ValidationError, match="has this certificate already"):
        certificates.create(alice.project.organization_id, CA.pem)


def test_an_active_certificate_is_not_removed(alice: Person) -> None:
    (row,) = activate(alice, CA, in_project=True)
    with pytest.raises(ValidationError, match="This certificate is active"):
        certificates.remove(row)
    certificates.deactivate(row.organization_id, [row], alice.project)
    certificates.remove(row)
    assert not Certificate.objects.exists()


def test_one_that_was_removed_meanwhile_is_neither_renamed_nor_removed(alice: Person) -> None:
    row = certificates.create(alice.project.organization_id, CA.pem)
    Certificate.objects.all().delete()
    for change in (partial(certificates.rename, row, "office"), partial(certificates.remove, row)):
        with pytest.raises(ValidationError, match="was changed or removed just now"):
            change()


@pytest.mark.parametrize("setting", ["CLIENT_CERTIFICATE_HEADER", "TRUSTED_PROXIES"])
def test_nothing_is_activated_where_no_proxy_passes_certificates_on(
    alice: Person, settings: Settings, setting: str
) -> None:
    setattr(settings, setting, "" if setting.endswith("HEADER") else [])
    with pytest.raises(ValidationError, match="No proxy passes on client certificates"):
        activate(alice, CA)
    assert ask(alice, None).status_code == 200


def test_one_that_is_not_valid_now_is_not_activated(alice: Person) -> None:
    rows = [
        certificates.create(alice.project.organization_id, each.pem) for each in (CA, make("a", days=(1, 9)))
    ]
    with pytest.raises(ValidationError, match="is not valid now"):
        certificates.activate(alice.project.organization_id, rows)
    assert not Certificate.objects.filter(is_active=True).exists()


def test_there_are_fifty_at_most(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "MAX_CERTIFICATES", 1)
    certificates.create(alice.project.organization_id, CA.pem)
    with pytest.raises(ValidationError, match="at most 1 certificates"):
        certificates.create(alice.project.organization_id, OTHER.pem)


def test_few_have_the_same_subject_as_each_is_tried(alice: Person) -> None:
    for _ in range(3):
        certificates.create(alice.project.organization_id, make("a").pem)
    with pytest.raises(ValidationError, match="at most 3 certificates of one subject"):
        certificates.create(alice.project.organization_id, make("a").pem)
    certificates.create(alice.project.organization_id, make("b").pem)


def test_the_memory_of_verified_headers_is_bounded(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_certificates, "_MAX_VERIFIED", 2)
    activate(alice, CA)
    for _ in range(4):
        assert ask(alice, CA.issue().header).status_code == 200
    assert len(client_certificates._verified) == 2
