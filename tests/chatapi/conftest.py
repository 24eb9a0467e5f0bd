"""One installation for all tests of what a client sees: real processes, and an upstream that behaves as the
model's name says.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pytest_django import Settings

from tests.cast import Person
from tests.certificates import make_certificate
from tests.chatapi.http_client import Client
from tests.chatapi.identity_provider import Provider
from tests.chatapi.open_generations import OpenGenerations
from tests.chatapi.worker.processes import Valkey
from tests.installation import Installation

PAGE = "<center><h1>400 Bad Request</h1></center><hr><center>nginx on host db-internal</center>"
MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "org/with-slash": {},
    "steady": {"tokens": 1000, "rate": 40},
    "three-then-silence": {"tokens": 1000, "stall_after": 3},
    "counts-pictures": {"tokens": 1000, "stall_after": 3, "usage_every_chunk": True, "prompt_tokens": 900},
    "begins-late": {"ttft_ms": 600},
    "refuses-late": {"ttft_ms": 600, "status": 500},
    "slow-to-begin": {"ttft_ms": 2_500},
    "pauses": {"ttft_ms": 600, "tokens": 4, "rate": 2},
    "drains": {"ttft_ms": 300, "tokens": 10, "rate": 20},
    "continues": {"ttft_ms": 300},
    "never-begins": {"ttft_ms": 60_000},
    "reasons": {"reasoning": 3},
    "refuses": {"refusal": True},
    "calls-tools": {"tool_calls": 2},
    "patches": {"turns": [["apply_patch", '{"input":"*** Begin\\nPatch"}']]},
    "tells-no-usage": {"no_usage": True},
    "tells-zero-usage": {"zero_usage": True},
    "tells-usage-always": {"usage_every_chunk": True},
    "tells-usage-by-choice": {"usage_by_choice": True},
    "tells-too-many-tokens": {"tokens": 3, "told_tokens": 1 << 30},
    "tells-too-few-tokens": {"tokens": 200, "told_tokens": 3},
    "tells-too-short-a-prompt": {"prompt_tokens": 2},
    "tells-cache-writes": {
        "prompt_tokens": 20,
        "cached_tokens": 4,
        "cache_write_tokens": 10,
        "cache_write_1h_tokens": 3,
    },
    "tells-too-long-a-prompt": {"tokens": 3, "prompt_tokens": 2_000_000_000},
    "disobeys-max-tokens": {"tokens": 50, "ignore_max_tokens": True},
    "ends-without-finish": {"finish_reason": "none", "fin_without_done": True},
    # breaks off after three tokens
    "breaks-by-page": {"error_frame": 3, "error_code": "bad_request", "error_message": PAGE},
    "breaks-by-error": {
        "error_frame": 3,
        "error_type": "server_error",
        "error_message": "CUDA error at 10.0.0.7",
    },
    # at a rate, because a reset takes with it what the kernel has received and not yet handed over
    "breaks-by-reset": {"rst_after": 3, "rate": 10},
    "breaks-by-close": {"fin_after": 3},
    "breaks-by-bad-json": {"bad_json": 3},
    "breaks-by-huge-frame": {"huge_frame": 3},
    # refused before the first token
    "status-400": {
        "status": 400,
        "error_message": "temperature is too high",
        "error_code": "bad_temperature",
    },
    "status-400-page": {"status": 400, "error_message": PAGE, "error_code": "bad_request"},
    "status-400-context": {"status": 400, "error_message": "This model's maximum context length is 8 tokens"},
    "status-401": {"status": 401, "error_message": "Incorrect API key provided: sk-upstreamsecret"},
    "status-403": {"status": 403},
    "status-404": {"status": 404, "error_code": "model_not_found"},
    "status-413": {"status": 413},
    "status-429": {"status": 429, "retry_after": "7"},
    "status-500": {"status": 500, "error_message": "Traceback (most recent call last)"},
    "status-503": {"status": 503},
    "html-200": {"html": True},
    "html-502": {"html": True, "status": 502},
    "redirects": {"redirect": "http://127.0.0.1:9/v1/chat/completions"},
    "says-nothing": {"raw": ""},
    # embeddings
    "embeds": {},
    "embeds-as-numbers": {"ignore_base64": True, "no_usage": True},
    "embeds-late": {"ttft_ms": 600},
    "embeds-too-many-tokens": {"prompt_tokens": 2_000_000_000},
    "embeds-too-few": {"raw": '{"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 1}}'},
    "embeds-too-much": {"dimensions": 2_000_000},
    "embeds-429": {"status": 429, "retry_after": "7"},
    "embeds-500": {"status": 500, "error_message": "Traceback (most recent call last)"},
    "embeds-400": {"status": 400, "error_message": "This model's maximum context length is 8 tokens"},
}

ACCOUNTS = """
import json
from django.utils import timezone
from accounts.keys import create_key, get_or_create_project
from usage.models import BudgetLimit

def make(name, organization="Tests", project="default", is_test=False, limits=(), **changes):
    row, secret = create_key(get_or_create_project(organization, project), name=name, is_test=is_test)
    type(row).objects.filter(pk=row.pk).update(**changes)
    ids = {"organization": row.project.organization_id, "project": row.project_id, "key": row.pk}
    for scope, period, nanodollars in limits:
        BudgetLimit.objects.create(
            scope=scope, scope_id=ids[scope], period=period, limit_nanodollars=nanodollars
        )
    return row, secret

keys = {
    "revoked": make("revoked", revoked_at=timezone.now()),
    "expired": make("expired", expires_at=timezone.now()),
    "closed project": make("closed-project", project="closed"),
    "closed organization": make("closed-organization", organization="Closed"),
    "speaks openai": make("speaks-openai", default_dialect="openai"),
    "stranger": make("stranger", organization="Strangers"),
    "poor key": make("poor-key", limits=[("key", "day", 1)]),
    "poor project": make("poor-project", project="poor", limits=[("project", "month", 1)]),
    "poor organization": make("poor-organization", organization="Poor", limits=[("organization", "ever", 1)]),
    "poor tester": make("poor-tester", is_test=True, limits=[("key", "day", 1)]),
    "room for one": make("room-for-one", limits=[("key", "day", 1_500_000)]),
    "room for four": make("room-for-four", limits=[("key", "day", 4_500_000)]),
}
project = keys["closed project"][0].project
type(project).objects.filter(pk=project.pk).update(is_active=False)
organization = keys["closed organization"][0].project.organization
type(organization).objects.filter(pk=organization.pk).update(is_active=False)
print(json.dumps({name: secret for name, (_, secret) in keys.items()}))
"""


@pytest.fixture(scope="session")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Start a server that no test stops or fills."""
    with Valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def counting(shared_valkey: Valkey, settings: Settings) -> None:
    """Count attempts to sign in, and used codes, under prefixes of the test's own."""
    settings.STREAMS_URL = f"unix://{shared_valkey.socket}"
    settings.REDIS_KEY_PREFIX = f"test-{uuid4().hex}:"
    settings.CACHES = {"default": settings.CACHES["default"] | {"KEY_PREFIX": settings.REDIS_KEY_PREFIX}}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a certificate of 127.0.0.1, with its key beside it."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """Start an identity provider for all tests."""
    with Provider(tmp_path_factory.mktemp("provider")).running() as provider:
        yield provider


@pytest.fixture
def trusting(provider: Provider, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """Trust the provider's certificate, and let providers have private addresses."""
    monkeypatch.setenv("SSL_CERT_FILE", str(provider.certificate))
    settings.OIDC_PRIVATE_ADDRESSES = True


@pytest.fixture
def mailing(settings: Settings) -> None:
    """Send mail, to pytest-django's box."""
    settings.SENDS_EMAIL, settings.DEFAULT_FROM_EMAIL = True, "chatapi@example.com"


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """Start a server for one test."""
    with Valkey(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start Valkey, web, worker and upstream; the books must be right at the end."""
    with Installation(tmp_path_factory.mktemp("installation")) as installation:
        installation.start(MODELS)
        yield installation
        installation.verify()


@pytest.fixture(scope="session")
def keys(installation: Installation) -> dict[str, str]:
    """Return keys by name: refused keys, keys without money, a key of another dialect."""
    keys: dict[str, str] = json.loads(installation.shell(ACCOUNTS))
    return keys


@pytest.fixture
def client(installation: Installation) -> Client:
    """Return a client with a key that may do everything."""
    return Client(installation.url, installation.keys["live"])


@pytest.fixture
def open_generations(installation: Installation) -> Iterator[OpenGenerations]:
    """Names the generations of clients that never get to know them."""
    with installation.open_valkey() as redis:
        yield OpenGenerations(redis)


@pytest.fixture
def boss(alice: Person) -> Person:
    """Alice, with a key that owns Acme."""
    return alice.manage_as("owner")
