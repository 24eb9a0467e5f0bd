"""Django's entry for this package: the system checks of the settings. Each names its variable and says what would do.

E001  CHATAPI_DEFAULT_DIALECT is not a dialect
E002  a number that must be positive is not, or one is negative
E003  the lease is too short for its heartbeat
E004  a Redis URL has a scheme that is not Redis's
E005  CHATAPI_FAILPOINTS names no failpoint
E006  CHATAPI_TRUSTED_PROXIES has what is no address or network
E007  CHATAPI_CORS_ORIGINS has what is no origin
E008  CHATAPI_METRICS_TOKEN is easily guessed, or no header can carry it
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

from accounts import client_address
from chatapi.wire.dialects import DIALECTS
from usage import failpoints

CHECK_TAG = "chatapi"
POSITIVE = (
    "DATABASE_TIMEOUT_MS",
    "WORKER_CONCURRENCY",
    "MAX_BODY_BYTES",
    "KEY_CACHE_MS",
    "LEASE_MS",
    "HEARTBEAT_MS",
    "REAPER_MS",
    "QUEUE_TTL_MS",
    "TICKET_TTL_MS",
    "STREAM_TTL_MS",
    "STALL_MS",
    "DRAIN_MS",
)
NOT_NEGATIVE = ("PING_MS", "FAILED_AUTHENTICATIONS_PER_MINUTE")
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[a-z0-9.-]+(?::[0-9]{1,5})?")
BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
"""RFC 6750, section 2.1; as long as what cannot be guessed."""
REDIS_URLS = {"REDIS_URL": "REDIS_URL", "BROKER_URL": "CHATAPI_BROKER_URL", "STREAMS_URL": "CHATAPI_STREAMS_URL"}
REDIS_SCHEMES = ("redis", "rediss", "unix")


class ChatAPIConfig(AppConfig):
    """The package `chatapi` as a Django app."""

    name = "chatapi"

    def ready(self) -> None:
        """Register the checks; arm the failpoints of a test."""
        for check in CHECKS:
            checks.register(check, CHECK_TAG)
        with suppress(ValueError):  # told by its check
            failpoints.arm(settings.FAILPOINTS)


def check_dialect(**_: Any) -> Sequence[checks.CheckMessage]:
    """The server's default dialect exists."""
    if settings.DEFAULT_DIALECT in DIALECTS:
        return []
    message = f"CHATAPI_DEFAULT_DIALECT={settings.DEFAULT_DIALECT!r} is not a dialect."
    return [checks.Error(message, hint=f"Use one of {', '.join(sorted(DIALECTS))}.", id="chatapi.E001")]


def check_numbers(**_: Any) -> Sequence[checks.CheckMessage]:
    """Times and sizes are above zero, or zero where that means none."""
    return [
        checks.Error(f"CHATAPI_{name}={getattr(settings, name)} is not positive.", hint="Use 1 or more.", id="chatapi.E002")
        for name in POSITIVE
        if getattr(settings, name) < 1
    ] + [
        checks.Error(f"CHATAPI_{name}={getattr(settings, name)} is negative.", hint="Use 0 for none, or more.", id="chatapi.E002")
        for name in NOT_NEGATIVE
        if getattr(settings, name) < 0
    ]


def check_lease(**_: Any) -> Sequence[checks.CheckMessage]:
    """One lost heartbeat must not lose the lease."""
    if settings.LEASE_MS >= 2 * settings.HEARTBEAT_MS:
        return []
    message = f"CHATAPI_LEASE_MS={settings.LEASE_MS} is too short for CHATAPI_HEARTBEAT_MS={settings.HEARTBEAT_MS}."
    return [checks.Error(message, hint=f"Make the lease {2 * settings.HEARTBEAT_MS} or more.", id="chatapi.E003")]


def check_redis_urls(**_: Any) -> Sequence[checks.CheckMessage]:
    """Each Redis URL is one that the clients can open."""
    return [
        checks.Error(f"{variable} must be a Redis URL.", hint="Use redis://HOST:PORT, rediss:// or unix:///PATH.", id="chatapi.E004")
        for name, variable in REDIS_URLS.items()
        if getattr(settings, name).partition("://")[0] not in REDIS_SCHEMES
    ]


def check_failpoints(**_: Any) -> Sequence[checks.CheckMessage]:
    """The failpoints of a test are ones that there are."""
    try:
        failpoints.parse(settings.FAILPOINTS)
    except ValueError as error:
        return [checks.Error(f"CHATAPI_FAILPOINTS: {error}", hint="Leave it unset outside of tests.", id="chatapi.E005")]
    return []


def check_trusted_proxies(**_: Any) -> Sequence[checks.CheckMessage]:
    """Each trusted proxy is an address or a network."""
    return [
        checks.Error(
            f"CHATAPI_TRUSTED_PROXIES: {proxy!r} is no address or network.",
            hint="Use 10.0.0.5 or 10.0.0.0/8, with commas.",
            id="chatapi.E006",
        )
        for proxy in settings.TRUSTED_PROXIES
        if not client_address.is_network(proxy)
    ]


def check_origins(**_: Any) -> Sequence[checks.CheckMessage]:
    """Each origin is as a browser sends it."""
    return [
        checks.Error(
            f"CHATAPI_CORS_ORIGINS: {origin!r} is no origin.",
            hint="Use https://app.example.com, without a path, or * for any.",
            id="chatapi.E007",
        )
        for origin in settings.CORS_ORIGINS
        if not ORIGIN.fullmatch(origin)
    ]


def check_metrics_token(**_: Any) -> Sequence[checks.CheckMessage]:
    """The token, if there is one, is such as a header can carry, and long enough."""
    if not settings.METRICS_TOKEN or BEARER_TOKEN.fullmatch(settings.METRICS_TOKEN):
        return []
    message = "CHATAPI_METRICS_TOKEN is not 16 or more letters, digits and signs out of -._~+/"
    return [checks.Error(message, hint="Use what `openssl rand -hex 16` prints.", id="chatapi.E008")]


CHECKS = (
    check_dialect,
    check_numbers,
    check_lease,
    check_redis_urls,
    check_failpoints,
    check_trusted_proxies,
    check_origins,
    check_metrics_token,
)
