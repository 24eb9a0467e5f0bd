"""Programs without stored keys: which tokens of theirs can be exchanged, and what the access tokens open."""

import json
import string
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from django.core.exceptions import ValidationError
from django.db import OperationalError
from django.db.models import QuerySet
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from accounts import api_keys, certificates, end_users, keys
from accounts.audit.models import AuditEntry
from accounts.authentication import look_up
from accounts.errors import KeyChanged, NotAuthenticated, SigningKeysUnavailable
from accounts.models import (
    APIKey,
    FederationRule,
    Organization,
    Project,
    ServiceAccount,
    WorkloadIdentityProvider,
)
from accounts.sign_in import fetching
from accounts.workload_identity import signing_keys
from tests.admin_pages import client_of
from tests.cast import Person, is_let_in
from tests.chatapi.console_pages import url
from tests.chatapi.management import HERE, refused, said
from tests.chatapi.token_issuer import (
    AUDIENCE,
    EC,
    ED,
    OTHER_RSA,
    RSA,
    SUBJECT,
    Issuer,
    exchange_body,
    jwk,
    post_exchange,
)
from tests.client_certificates import make
from tests.installation import wait_for

pytestmark = pytest.mark.usefixtures("db", "without_counts")
PROVIDERS = f"{HERE}/workload_identity_providers"
UNTRUSTED = "No enabled workload identity provider with this id trusts this token."


@pytest.fixture
def without_counts(settings: Settings) -> None:
    """Count no wrong tokens, which all come from one IP."""
    settings.FAILED_AUTHENTICATIONS_PER_MINUTE = 0


class Federated:
    """A provider with uploaded keys, and a rule for one service account."""

    def __init__(self, boss: Person, project: Project, **provider: Any) -> None:
        self.boss, self.issuer = boss, Issuer()
        self.account = ServiceAccount.objects.create(project=project, name="backend")
        uploaded = {"type": "uploaded_jwks", "jwks": self.issuer.jwks}
        body = {"name": "cluster", "type": "oidc", "issuer": self.issuer.url, "audience": AUDIENCE}
        self.provider = said(boss, "POST", PROVIDERS, body | {"verification": uploaded} | provider)
        self.path = f"{PROVIDERS}/{self.provider['id']}"
        self.rules = f"{self.path}/federation_rules"
        self.rule = self.add_rule({"sub": SUBJECT})

    @property
    def key(self) -> QuerySet[APIKey]:
        return APIKey.objects.filter(pk=self.rule["api_key_id"])

    def add_rule(self, matchers: Any, **changes: Any) -> Any:
        body = {
            "attribute_matchers": matchers,
            "project_id": str(self.account.project_id),
            "service_account_id": str(self.account.pk),
        }
        return said(self.boss, "POST", self.rules, body | changes)

    def change_rule(self, **changes: Any) -> Any:
        return said(self.boss, "POST", f"{self.rules}/{self.rule['id']}", changes)

    def send(self, token: str | None = None, **changes: Any) -> Any:
        sent = self.issuer.token() if token is None else token
        return post_exchange(exchange_body(self.provider["id"], str(self.account.pk), sent, **changes))

    def access_token(self, token: str | None = None) -> str:
        answer = self.send(token)
        assert answer.status_code == 200, answer.content
        return str(answer.json()["access_token"])

    def refusal(self, token: str | None = None, **changes: Any) -> tuple[str, str]:
        """Return the error of a refusal, and its description."""
        answer = self.send(token, **changes)
        assert answer.status_code == 400, answer.content
        assert answer.headers["content-type"] == "application/json"
        return answer.json()["error"], answer.json()["error_description"]


@pytest.fixture
def federated(boss: Person, bob: Person) -> Federated:
    return Federated(boss, bob.project)


def test_a_token_is_exchanged_for_one_of_the_service_account(federated: Federated, bob: Person) -> None:
    answer = federated.send()
    assert answer.headers["cache-control"].count("no-store") == 1
    found = answer.json()
    assert (found["token_type"], found["issued_token_type"].rpartition(":")[2]) == ("Bearer", "access_token")
    assert 290 <= found["expires_in"] <= 300  # it ends with the program's own token
    caller = look_up(found["access_token"])
    row = APIKey.objects.get(pk=federated.rule["api_key_id"])
    assert (caller.api_key_id, caller.project_id) == (row.pk, bob.project.pk)
    assert (row.service_account, row.name, row.digest) == (federated.account, "backend", "")
    assert (caller.scopes, caller.is_admin, caller.is_test) == (frozenset(), False, False)
    assert AuditEntry.objects.filter(action="changed").count() == 0  # an exchange changes nothing


@pytest.mark.parametrize(
    ("key", "kid", "alg"), [(RSA, "rsa", "RS256"), (EC, "ec", "ES256"), (ED, "ed", "EdDSA")]
)
def test_keys_of_each_type_are_trusted(federated: Federated, key: Any, kid: str, alg: str) -> None:
    assert is_let_in(federated.access_token(federated.issuer.token(key, kid, alg)))


def test_a_form_is_read_as_well_as_json(federated: Federated) -> None:
    body = exchange_body(federated.provider["id"], str(federated.account.pk), federated.issuer.token())
    body["subject_token_type"] = "urn:ietf:params:oauth:token-type:id_token"
    form = "application/x-www-form-urlencoded"
    answer = post_exchange(urlencode(body | {"client_id": "ignored"}), form, HTTP_HOST="any.example")
    assert is_let_in(answer.json()["access_token"])
    twice = post_exchange(urlencode(body) + "&grant_type=x", form)
    assert (twice.status_code, twice.json()["error"]) == (400, "invalid_request")


def test_a_token_ends_after_an_hour_at_most(federated: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time())
    answer = federated.send(federated.issuer.token(exp=now + 86_400)).json()
    assert 3_590 <= answer["expires_in"] <= 3_600
    assert is_let_in(answer["access_token"])
    monkeypatch.setattr(time, "time", lambda: now + 3_602.0)
    with pytest.raises(NotAuthenticated) as ended:
        look_up(answer["access_token"])
    assert ended.value.reason == "expired_key"


def test_a_token_ends_with_the_key_of_the_rule(federated: Federated) -> None:
    rows = APIKey.objects.filter(pk=federated.rule["api_key_id"])
    rows.update(expires_at=timezone.now() + timedelta(seconds=60))
    assert 50 <= federated.send().json()["expires_in"] <= 60
    rows.update(expires_at=timezone.now())
    assert federated.refusal()[0] == "invalid_grant"


def test_a_changed_access_token_opens_nothing(federated: Federated, bob: Person, settings: Settings) -> None:
    good = federated.access_token()
    row = APIKey.objects.get(pk=federated.rule["api_key_id"])
    later = api_keys.access_token(row.public, int(time.time()) + 10**6, settings.KEY_PEPPER)
    mixed = later[: -api_keys.CHECKSUM_LENGTH - 26] + good[-api_keys.CHECKSUM_LENGTH - 26 :]
    of_secret = api_keys.access_token(bob.api_key.public, int(time.time()) + 60, settings.KEY_PEPPER)
    other_pepper = api_keys.access_token(row.public, int(time.time()) + 60, "another pepper")
    for forged in (mixed, of_secret, other_pepper, good.swapcase(), f"{good}0"):
        assert not is_let_in(forged)
    assert is_let_in(good)


def base_62(number: int, length: int) -> str:
    """Return the last digits of the number, as keys have them."""
    digits = string.digits + string.ascii_uppercase + string.ascii_lowercase
    return "".join(digits[number // 62**place % 62] for place in reversed(range(length)))


def test_a_shown_digest_of_an_end_user_signs_no_access_token(federated: Federated) -> None:
    """Clients choose the names of end users, and receipts show their digests, which have the same pepper."""
    body = f"ck_live_{federated.key.get().public}_{base_62(int(time.time()) + 10**6, 6)}"
    for name in (f"access token {body}", body):
        shown = end_users.stored_name(name, is_hashed=True)
        assert shown is not None
        forged = body + base_62(int(shown.removeprefix(end_users.PREFIX), 16), 26)
        forged += base_62(zlib.crc32(forged.encode()), api_keys.CHECKSUM_LENGTH)
        assert api_keys.parse(forged) is not None
        assert not is_let_in(forged)


def public_pem(key: Any) -> bytes:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(serialization.Encoding.PEM, kind))


def signed_by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """Return a token with an HMAC; PyJWT refuses to make it with a public key."""
    unsigned = jwt.encode(claims, "x" * 32, "HS256", headers=header).rpartition(".")[0]
    digest = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(unsigned.encode(), secret)
    return f"{unsigned}.{jwt.utils.base64url_encode(digest).decode()}"


def test_a_symmetric_or_missing_signature_is_refused(federated: Federated) -> None:
    claims = jwt.decode(federated.issuer.token(), options={"verify_signature": False})
    confused = signed_by_hand({"kid": "rsa"}, claims, public_pem(RSA))
    unsigned: Any = None
    none = jwt.encode(claims, unsigned, "none", headers={"kid": "rsa"})
    for token in (confused, none):
        error, description = federated.refusal(token)
        assert error == "invalid_grant"
        assert description.startswith("The subject token must be signed by one of RS256")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aud": "https://other.example.com"}, "'aud'"),
        ({"aud": None}, "lacks the claim 'aud'"),
        ({"iss": "https://other.example.com"}, "'iss'"),
        ({"iss": None}, "lacks the claim 'iss'"),
        ({"exp": None}, "lacks the claim 'exp'"),
        ({"exp": 1}, "has expired"),
        ({"exp": "soon"}, "no signed JWT, or a time in it is no number"),
        ({"nbf": 10**11}, "not valid yet"),
        ({"iat": 10**11}, "not valid yet"),
        ({"sub": "system:serviceaccount:shop:other"}, "No enabled federation rule"),
        ({"sub": None}, "No enabled federation rule"),
        ({"sub": 7}, "'sub' of the subject token must be a text"),
        ({"jti": 7}, "'jti' of the subject token must be a text"),
        ({"key": OTHER_RSA}, UNTRUSTED),
        ({"kid": "unknown"}, UNTRUSTED),
        ({"kid": "ec"}, UNTRUSTED),
        ({"alg": "RS512"}, UNTRUSTED),
        ({"key": EC, "alg": "ES256", "kid": "ed"}, UNTRUSTED),
    ],
)
def test_a_wrong_token_is_refused(federated: Federated, changes: dict[str, Any], words: str) -> None:
    error, description = federated.refusal(federated.issuer.token(**changes))
    assert error == "invalid_grant"
    assert words in description


def test_a_token_that_ended_in_this_second_is_not_prolonged(federated: Federated) -> None:
    now = int(time.time())
    assert federated.refusal(federated.issuer.token(exp=now - 1)) == (
        "invalid_grant",
        "The subject token has expired.",
    )
    # Clocks may differ by seconds.
    assert federated.access_token(federated.issuer.token(iat=now + 20, nbf=now + 20))


@pytest.mark.parametrize("token", ["x", "a.b.c", "." * 300, "é.é.é", "W1tb" * 4_000 + ".e.e"])
def test_what_is_no_token_is_refused(federated: Federated, token: str) -> None:
    error, description = federated.refusal(token)
    assert (error, description.split(",")[0]) == ("invalid_grant", "The subject token is no signed JWT")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"grant_type": "client_credentials"}, "unsupported_grant_type", "grant_type"),
        ({"grant_type": None}, "invalid_request", "grant_type"),
        ({"subject_token": ""}, "invalid_request", "subject_token"),
        ({"subject_token": "x" * 16_385}, "invalid_request", "subject_token"),
        ({"subject_token_type": "urn:ietf:params:oauth:token-type:saml2"}, "invalid_request", "id_token"),
        ({"identity_provider_id": "x"}, "invalid_request", "identity_provider_id"),
        ({"service_account_id": 7}, "invalid_request", "service_account_id"),
        ({"requested_token_type": "x"}, "invalid_request", "requested_token_type"),
        ({"scope": "models"}, "invalid_request", "'scope' has no effect"),
    ],
)
def test_a_wrong_request_names_the_parameter(
    federated: Federated, changes: dict[str, Any], error: str, words: str
) -> None:
    found, description = federated.refusal(**changes)
    assert found == error
    assert words in description


@pytest.mark.parametrize(
    ("body", "content_type"), [(b"{", "application/json"), (b"[]", "application/json"), (b"x", "text/plain")]
)
def test_a_body_that_is_no_request_is_refused(body: bytes, content_type: str) -> None:
    answer = post_exchange(body, content_type)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


def test_a_database_that_is_away_is_a_503_of_oauth(
    federated: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr("accounts.workload_identity.exchange.exchange", fail)
    answer = federated.send()
    assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
    assert answer.headers["Retry-After"] == "5"


def test_a_form_that_django_refuses_has_an_error_of_oauth() -> None:
    form = "application/x-www-form-urlencoded"
    for body, content_type in (
        ("grant_type=x", f"{form}; charset=latin-1"),
        (urlencode({f"name{each}": 1 for each in range(2_000)}), form),
    ):
        answer = post_exchange(body, content_type)
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
        assert answer.json()["error"] == "invalid_request"


@pytest.mark.parametrize(
    ("value", "claim", "matches"),
    [
        ("1", "1", True),
        ("1", 1, False),
        (1, 1, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (True, "true", False),
        (False, 0, False),
        (1, 1.0, True),
        (1.5, 1.5, True),
        (0, None, False),
        ("a", ["a"], False),
        (2**53 + 1, 2**53, False),
    ],
)
def test_a_matcher_compares_values_of_one_type(
    federated: Federated, value: Any, claim: Any, matches: bool
) -> None:
    changed = federated.change_rule(attribute_matchers={"sub": SUBJECT, "claim": value})
    assert changed["attribute_matchers"]["claim"] == value
    assert type(changed["attribute_matchers"]["claim"]) is type(value)
    answer = federated.send(federated.issuer.token(claim=claim))
    assert (answer.status_code == 200) is matches


def test_the_oldest_rule_that_matches_counts(federated: Federated) -> None:
    restricted = {"type": "restricted", "scopes": ["completions"]}
    other = federated.add_rule({"sub": SUBJECT, "ref": "main"}, permissions=restricted, name="main only")
    token = federated.issuer.token(ref="main")
    assert look_up(federated.access_token(token)).api_key_id == int(federated.rule["api_key_id"])
    federated.change_rule(enabled=False)
    caller = look_up(federated.access_token(token))
    assert (caller.api_key_id, set(caller.scopes)) == (int(other["api_key_id"]), {"completions"})
    assert caller.key_name.startswith("main only (ck_live_")
    assert federated.refusal()[0] == "invalid_grant"


WAYS_OUT: dict[str, Callable[[Federated], Any]] = {
    "disabled rule": lambda it: it.change_rule(enabled=False),
    "deleted rule": lambda it: said(it.boss, "DELETE", f"{it.rules}/{it.rule['id']}"),
    "other matchers": lambda it: it.change_rule(attribute_matchers={"sub": SUBJECT, "ref": "main"}),
    "disabled provider": lambda it: said(it.boss, "POST", it.path, {"enabled": False}),
    "other audience": lambda it: said(it.boss, "POST", it.path, {"audience": "other"}),
    "other keys": lambda it: said(
        it.boss,
        "POST",
        it.path,
        {"verification": {"type": "uploaded_jwks", "jwks": {"keys": [jwk(OTHER_RSA, "rsa")]}}},
    ),
    "deleted account": lambda it: said(
        it.boss, "DELETE", f"{HERE}/projects/{it.account.project_id}/service_accounts/{it.account.pk}"
    ),
    "disabled key": lambda it: keys.set_active(it.key, is_active=False),
    "revoked key": lambda it: keys.revoke(it.key),
    "archived project": lambda it: Project.objects.filter(pk=it.account.project_id).update(is_active=False),
    "inactive organization": lambda it: Organization.objects.update(is_active=False),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_each_way_to_end_access_tokens_ends_them_at_once(federated: Federated, way: str) -> None:
    token = federated.access_token()
    WAYS_OUT[way](federated)
    assert not is_let_in(token)
    assert federated.refusal()[0] == "invalid_grant"
    if way not in {"inactive organization", "deleted account"}:
        listed = said(federated.boss, "GET", federated.rules)["data"]
        is_disabled = way in ("disabled rule", "disabled key", "revoked key")
        assert [each["enabled"] for each in listed] == ([] if way == "deleted rule" else [not is_disabled])
    assert FederationRule.objects.exists() is not way.startswith("deleted")


def test_a_provider_that_is_enabled_again_gives_new_tokens(federated: Federated) -> None:
    old = federated.access_token()
    for is_enabled in (False, True):
        said(federated.boss, "POST", federated.path, {"enabled": is_enabled})
    assert not is_let_in(old)
    assert is_let_in(federated.access_token())
    said(federated.boss, "POST", federated.path, {"name": "renamed"})
    named = federated.change_rule(name="deploy", description="x", enabled=True)
    assert (named["name"], named["description"]) == ("deploy", "x")
    assert APIKey.objects.get(pk=federated.rule["api_key_id"]).name == "deploy"


@pytest.mark.parametrize("of", ["rule", "key"])
def test_access_tokens_stay_ended_when_the_rule_is_enabled_again(federated: Federated, of: str) -> None:
    old = federated.access_token()
    for is_enabled in (False, True):
        if of == "rule":
            federated.change_rule(enabled=is_enabled)
        else:
            keys.set_active(federated.key, is_active=is_enabled)
    assert not is_let_in(old)
    assert is_let_in(federated.access_token())


def test_a_matcher_with_another_type_ends_access_tokens(federated: Federated) -> None:
    federated.change_rule(attribute_matchers={"sub": SUBJECT, "claim": 1})
    old = federated.access_token(federated.issuer.token(claim=1))
    federated.change_rule(attribute_matchers={"sub": SUBJECT, "claim": True})
    assert not is_let_in(old)


def test_permissions_hold_for_tokens_that_exist(federated: Federated) -> None:
    token = federated.access_token()
    federated.change_rule(permissions={"type": "restricted", "scopes": ["models"]})
    assert look_up(token).scopes == {"models"}
    changed = federated.change_rule(permissions={"type": "service_account_default"})
    assert changed["permissions"] == {"type": "service_account_default"}
    assert look_up(token).scopes == frozenset()


def test_a_token_opens_nothing_without_the_certificate_that_its_project_needs(
    federated: Federated, bob: Person
) -> None:
    token = federated.access_token()
    row = certificates.create(bob.project.organization_id, make("Acme").pem)
    row.projects.add(bob.project)
    answer = Client().get("/v1/key", HTTP_AUTHORIZATION=f"Bearer {token}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "certificate_required")
    assert federated.access_token(), "the exchange needs none"
    row.projects.clear()
    assert Client().get("/v1/key", HTTP_AUTHORIZATION=f"Bearer {token}").status_code == 200


def test_strangers_learn_nothing_about_providers(federated: Federated, charlie: Person) -> None:
    """A provider of another organization, a disabled one and none answer alike; ids do not mix tenants."""
    other = Federated(charlie.manage_as("owner"), charlie.project)
    wrong = federated.issuer.token(OTHER_RSA)
    said(other.boss, "POST", other.path, {"enabled": False})
    answers = {
        post_exchange(exchange_body(each, str(federated.account.pk), wrong)).content
        for each in (federated.provider["id"], other.provider["id"], "999999999")
    }
    assert len(answers) == 1
    said(other.boss, "POST", other.path, {"enabled": True})
    # A right token of the one organization's provider opens no service account of the other.
    crossed = exchange_body(federated.provider["id"], str(other.account.pk), federated.issuer.token())
    absent = exchange_body(federated.provider["id"], "999999999", federated.issuer.token())
    assert post_exchange(crossed).content == post_exchange(absent).content
    assert post_exchange(crossed).status_code == 400


def test_a_token_with_a_detached_payload_tells_nothing_about_providers(federated: Federated) -> None:
    header = {"alg": "RS256", "kid": "rsa", "b64": False, "crit": ["b64"]}
    token = f"{jwt.utils.base64url_encode(json.dumps(header).encode()).decode()}..eA"
    assert federated.refusal(token) == federated.refusal(token, identity_provider_id="999999999")


def test_wrong_tokens_count_as_wrong_keys(federated: Federated, settings: Settings) -> None:
    settings.FAILED_AUTHENTICATIONS_PER_MINUTE = 3
    body = exchange_body(federated.provider["id"], str(federated.account.pk), "x")
    right = body | {"subject_token": federated.issuer.token()}
    address = {"REMOTE_ADDR": "192.0.2.77"}
    assert post_exchange(right, **address).status_code == 200
    assert [post_exchange(body, **address).status_code for _ in range(4)] == [400, 400, 400, 429]
    late = post_exchange(body | {"subject_token": federated.issuer.token(jti="2")}, **address)
    assert (late.status_code, late.json()["error"]) == (429, "temporarily_unavailable")
    assert 1 <= int(late.headers["retry-after"]) <= 60
    # What was right before is let in, behind the same address.
    assert post_exchange(right, **address).status_code == 200
    assert post_exchange(body, REMOTE_ADDR="192.0.2.78").status_code == 400


# ---- keys that are fetched


@pytest.fixture
def issuer(certificate: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[Issuer]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    settings.OIDC_PRIVATE_ADDRESSES = True
    with Issuer().running(certificate) as issuer:
        yield issuer


@pytest.fixture
def discovered(boss: Person, bob: Person, issuer: Issuer) -> Federated:
    """A provider whose keys are fetched."""
    verification = {"type": "discovery", "discovery_url": None}
    federated = Federated(boss, bob.project, issuer=issuer.url, verification=verification)
    assert federated.provider["verification"] == verification
    federated.issuer = issuer
    return federated


def test_fetched_keys_are_cached(discovered: Federated, issuer: Issuer) -> None:
    for _ in range(3):
        assert is_let_in(discovered.access_token())
    assert issuer.paths == ["/.well-known/openid-configuration", "/keys"]


def test_unknown_key_ids_cause_few_fetches(
    discovered: Federated, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        error, description = discovered.refusal(issuer.token(OTHER_RSA, f"unknown {number}"))
        assert (error, description.startswith(UNTRUSTED)) == ("invalid_grant", True)
    assert issuer.paths.count("/keys") == 1
    # The issuer signs with a new key: it is fetched once the issuer may be asked again.
    issuer.keys.append(jwk(OTHER_RSA, "new"))
    rotated = issuer.token(OTHER_RSA, "new")
    assert discovered.refusal(rotated)[0] == "invalid_grant"
    monkeypatch.setattr(signing_keys, "REFETCH_S", 0.0)
    assert discovered.access_token(rotated)
    assert issuer.paths.count("/keys") == 2


def test_known_keys_outlive_an_outage_of_the_issuer(
    discovered: Federated, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert discovered.access_token()
    issuer.is_broken = True
    monkeypatch.setattr(signing_keys, "REFETCH_S", 0.0)
    monkeypatch.setattr(signing_keys, "_FRESH_S", 0.0)
    assert discovered.access_token()
    monkeypatch.setattr(signing_keys, "_USABLE_S", 0.0)
    answer = discovered.send()
    assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
    assert answer.headers["retry-after"]


def test_known_keys_do_not_wait_for_an_issuer_that_hangs(
    discovered: Federated, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert discovered.access_token()
    provider = WorkloadIdentityProvider.objects.get(pk=discovered.provider["id"])
    for name, seconds in (("REFETCH_S", 0.0), ("_FRESH_S", 0.0), ("_WAIT_S", 0.1)):
        monkeypatch.setattr(signing_keys, name, seconds)
    with ThreadPoolExecutor() as threads, issuer.hanging():
        threads.submit(signing_keys.find, provider, "rsa", "RS256")
        wait_for(lambda: len(issuer.paths) == 3, "the second fetch")
        assert discovered.access_token()


def test_few_threads_wait_for_an_issuer_that_hangs(
    discovered: Federated, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django has eight threads for pages; strangers can cause a fetch."""
    provider = WorkloadIdentityProvider.objects.get(pk=discovered.provider["id"])
    monkeypatch.setattr(signing_keys, "_WAIT_S", 60.0)
    for name in ("_SILENCE_S", "TIME_LIMIT_S"):
        monkeypatch.setattr(fetching, name, 60.0)
    with ThreadPoolExecutor(8) as threads, issuer.hanging():
        asked = [threads.submit(signing_keys.find, provider, "x", "RS256") for _ in range(8)]
        wait_for(lambda: sum(each.done() for each in asked) >= 4, "refusals")
        ended = [each.exception() for each in asked if each.done()]
    assert {type(each) for each in ended} == {SigningKeysUnavailable}


@pytest.mark.parametrize("fault", ["another issuer", "broken", "plain HTTP", "private address"])
def test_an_issuer_that_can_not_be_asked_is_a_503(
    discovered: Federated, issuer: Issuer, fault: str, settings: Settings
) -> None:
    token = issuer.token()
    match fault:
        case "another issuer":
            issuer.named_issuer = "https://other.example.com"
        case "broken":
            issuer.is_broken = True
        case "plain HTTP":
            issuer.url = issuer.url.replace("https", "http")
        case "private address":
            settings.OIDC_PRIVATE_ADDRESSES = False
    answer = discovered.send(token)
    assert answer.status_code == 503, answer.content
    assert "signing keys" in answer.json()["error_description"]


def test_no_issuer_is_asked_for_an_unknown_provider(discovered: Federated, issuer: Issuer) -> None:
    for provider_id in ("999999999", "0"):
        sent = exchange_body(provider_id, str(discovered.account.pk), issuer.token())
        assert post_exchange(sent).status_code == 400
    said(discovered.boss, "POST", discovered.path, {"enabled": False})
    assert discovered.refusal()[0] == "invalid_grant"
    assert issuer.paths == []


def test_another_url_of_the_description_is_used(discovered: Federated, issuer: Issuer) -> None:
    url = f"{issuer.url}/elsewhere"
    said(
        discovered.boss,
        "POST",
        discovered.path,
        {"verification": {"type": "discovery", "discovery_url": url}},
    )
    assert discovered.send().status_code == 503
    assert issuer.paths == ["/elsewhere"]


# ---- management


def test_providers_and_rules_are_listed_page_by_page(federated: Federated) -> None:
    boss = federated.boss
    second = said(
        boss, "POST", PROVIDERS, {"name": "b", "type": "oidc", "issuer": "https://b.c", "audience": "d"}
    )
    assert (second["enabled"], second["attribute_transformations"]) == (True, [])
    page = said(boss, "GET", f"{PROVIDERS}?limit=1&order=desc")
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([second["id"]], True)
    rest = said(boss, "GET", f"{PROVIDERS}?order=desc&after={page['last_id']}")
    assert rest["data"] == [federated.provider]
    assert said(boss, "GET", federated.path) == federated.provider
    other = federated.add_rule({"ref": "main"})
    listed = said(boss, "GET", f"{federated.rules}?service_account_id={federated.account.pk}&order=desc")
    assert [each["id"] for each in listed["data"]] == [other["id"], federated.rule["id"]]
    assert said(boss, "GET", f"{federated.rules}?service_account_id=999999999")["data"] == []
    assert said(boss, "GET", f"{federated.rules}/{other['id']}") == other


def test_a_provider_is_deleted_after_its_rules(federated: Federated) -> None:
    boss, rule = federated.boss, f"{federated.rules}/{federated.rule['id']}"
    assert (
        "rules of this provider first" in said(boss, "DELETE", federated.path, status=400)["error"]["message"]
    )
    deleted = {"object": "organization.workload_identity_federation_rule.deleted", "deleted": True}
    assert said(boss, "DELETE", rule) == deleted | {"id": federated.rule["id"]}
    assert said(boss, "DELETE", federated.path)["object"] == "organization.workload_identity_provider.deleted"
    assert said(boss, "GET", rule, status=404)["error"]["code"] == "not_found"
    assert APIKey.objects.get(pk=federated.rule["api_key_id"]).revoked_at is not None


PRIVATE = {"keys": [{"kty": "RSA", "n": "x", "e": "AQAB", "d": "x"}]}
NO_KEYS = {"type": "uploaded_jwks", "jwks": {"keys": []}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"name": ""}, "name"),
        ({"type": "saml"}, "type"),
        ({"issuer": "http://issuer.example.com"}, "issuer"),
        ({"issuer": "https://user@issuer.example.com"}, "issuer"),
        ({"audience": ""}, "audience"),
        ({"description": "x" * 501}, "description"),
        ({"enabled": "yes"}, "enabled"),
        ({"verification": {"type": "other"}}, "verification.type"),
        ({"verification": {"type": "discovery", "discovery_url": "ftp://x"}}, "verification.discovery_url"),
        ({"verification": NO_KEYS}, "verification.jwks"),
        ({"verification": {"type": "uploaded_jwks", "jwks": PRIVATE}}, "verification.jwks"),
        (
            {"verification": {"type": "uploaded_jwks", "jwks": {"keys": [{"kty": "oct"}]}}},
            "verification.jwks",
        ),
        (
            {"verification": {"type": "uploaded_jwks", "jwks": {"keys": [{"kty": "RSA"}]}}},
            "verification.jwks",
        ),
        ({"attribute_transformations": [{"attribute": "a", "expression": "b"}]}, "attribute_transformations"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_wrong_provider_is_a_400(federated: Federated, changes: dict[str, Any], param: str) -> None:
    body = {"name": "b", "type": "oidc", "issuer": "https://b.example.com", "audience": "c"} | changes
    assert refused(federated.boss, "POST", PROVIDERS, body)[0] == param


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"attribute_matchers": {}}, "attribute_matchers"),
        ({"attribute_matchers": {"sub": ["a"]}}, "attribute_matchers"),
        ({"attribute_matchers": {str(each): 1 for each in range(21)}}, "attribute_matchers"),
        ({"permissions": {"type": "restricted", "scopes": []}}, "permissions.scopes"),
        ({"permissions": {"type": "restricted", "scopes": ["usage"]}}, "permissions.scopes[0]"),
        ({"permissions": {"type": "other"}}, "permissions.type"),
        ({"name": "é"}, "name"),
        ({"project_id": None}, "project_id"),
    ],
)
def test_a_wrong_rule_is_a_400(federated: Federated, changes: dict[str, Any], param: str) -> None:
    body = {
        "attribute_matchers": {"sub": "x"},
        "project_id": str(federated.account.project_id),
        "service_account_id": str(federated.account.pk),
    }
    assert refused(federated.boss, "POST", federated.rules, body | changes)[0] == param


def test_a_rule_is_for_an_account_of_its_project(federated: Federated, charlie: Person) -> None:
    foreign = ServiceAccount.objects.create(project=charlie.project, name="foreign")
    own = {"attribute_matchers": {"sub": "x"}, "project_id": str(federated.account.project_id)}
    for account in (foreign.pk, 999999999):
        body = own | {"service_account_id": str(account)}
        assert refused(federated.boss, "POST", federated.rules, body, 404) == (
            "service_account_id",
            "not_found",
        )
    body = own | {
        "project_id": str(federated.boss.project.pk),
        "service_account_id": str(federated.account.pk),
    }
    assert refused(federated.boss, "POST", federated.rules, body, 404)[0] == "service_account_id"


def test_there_is_a_bound_on_rules_and_providers(
    federated: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accounts.workload_identity.federation.MAX_RULES", 1)
    monkeypatch.setattr("accounts.workload_identity.federation.MAX_PROVIDERS", 1)
    body = {"attribute_matchers": {"sub": "x"}, "project_id": str(federated.account.project_id)}
    body["service_account_id"] = str(federated.account.pk)
    assert "at most 1" in said(federated.boss, "POST", federated.rules, body, 400)["error"]["message"]
    body = {"name": "b", "type": "oidc", "issuer": "https://b.example.com", "audience": "c"}
    assert "at most 1" in said(federated.boss, "POST", PROVIDERS, body, 400)["error"]["message"]


def test_a_key_limited_to_models_widens_nothing_by_a_rule_for_all_models(federated: Federated) -> None:
    limited = APIKey.objects.filter(pk=federated.boss.api_key.pk)
    limited.update(allowed_models=["small"])
    for path, body in (
        (f"{federated.rules}/{federated.rule['id']}", {"attribute_matchers": {"sub": "mine"}}),
        (federated.path, {"audience": "mine"}),
    ):
        error = said(federated.boss, "POST", path, body, 403)["error"]
        assert "models that the calling key may not use" in error["message"]
    federated.key.update(allowed_models=["small"])
    assert federated.change_rule(attribute_matchers={"sub": "mine"})["attribute_matchers"] == {"sub": "mine"}


def test_changes_are_in_the_audit_log(federated: Federated) -> None:
    federated.change_rule(attribute_matchers={"sub": "other"})
    said(federated.boss, "POST", federated.path, {"audience": "other"})
    log = said(federated.boss, "GET", f"{HERE}/audit_logs")["data"]
    types = [each["type"] for each in log]
    for kind in ("workload_identity_provider", "workload_identity_federation_rule"):
        assert {f"{kind}.created", f"{kind}.updated"} <= set(types)
    assert {each["actor"]["type"] for each in log} == {"api_key"}
    changed = next(each for each in log if each["type"] == "workload_identity_provider.updated")
    assert changed[changed["type"]]["changes_requested"] == {"audience": "other"}


def test_the_key_of_a_rule_is_no_admin_key_and_has_no_secret(federated: Federated) -> None:
    row = APIKey.objects.get(pk=federated.rule["api_key_id"])
    row.is_admin = True
    with pytest.raises(ValidationError, match="can't be an admin key"):
        row.full_clean()
    row.refresh_from_db()
    with pytest.raises(KeyChanged):
        keys.rotate(row, None)
    keys.revoke(APIKey.objects.filter(pk=row.pk))
    body = {"enabled": True}
    error = said(federated.boss, "POST", f"{federated.rules}/{federated.rule['id']}", body, 400)["error"]
    assert "is revoked" in error["message"]
    assert json.dumps(said(federated.boss, "GET", federated.rules)).count('"enabled": false') == 1


def test_pages_of_the_key_say_that_it_has_no_secret(federated: Federated, bob: Person) -> None:
    row, client = federated.key.get(), client_of(bob.user)
    page = client.get(url(bob, f"keys/{row.pk}")).content.decode()
    assert "access tokens</a> of the service account backend" in page
    assert ">Rotate</a>" not in page
    assert ">access tokens</span>" in client.get(url(bob, "keys")).content.decode()
    followed = client.get(url(bob, f"keys/{row.pk}/rotate"), follow=True).content.decode()
    assert "This key has no secret" in followed
    admin = client.get(f"/admin/accounts/apikey/{row.pk}/change/", follow=True).content.decode()
    assert "live, access tokens" in admin
    assert f"apikey/{row.pk}/rotate" not in admin
    refusal = client.get(f"/admin/accounts/apikey/{row.pk}/rotate", follow=True).content.decode()
    assert "This key has no secret" in refusal
