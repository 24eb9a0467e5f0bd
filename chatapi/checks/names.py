"""Checks names, such as those of dialects and headers, and secrets."""

import re
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks

from chatapi import local_secrets
from chatapi.checks import CHECK_TAG, MISSPELT, wrong_values
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import all_key_headers
from usage import failpoints

HEADER_NAME = re.compile(r"[a-z0-9-]{1,64}")
# A token by RFC 6750 section 2.1, long enough not to be guessed.
BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")


@checks.register(CHECK_TAG)
def check_names(**_: Any) -> Sequence[checks.CheckMessage]:
    """Warn of variables that look like settings and are none: a misspelt one would be ignored."""
    return [
        checks.Warning(
            f"{name} is not a setting.",
            hint=f"Did you mean {nearest}?" if nearest else "README lists the settings.",
            id=MISSPELT,
        )
        for name, nearest in settings.UNKNOWN_VARIABLES.items()
    ]


@checks.register(CHECK_TAG)
def check_dialect(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the default dialect exists."""
    if settings.DEFAULT_DIALECT in DIALECTS:
        return []
    message = f"CHATAPI_DEFAULT_DIALECT={settings.DEFAULT_DIALECT!r} is not a dialect."
    return [checks.Error(message, hint=f"Use one of {', '.join(sorted(DIALECTS))}.", id="chatapi.E001")]


@checks.register(CHECK_TAG)
def check_default_model(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that there is a model for requests without one."""
    if settings.DEFAULT_MODEL.strip():
        return []
    return [
        checks.Error(
            "CHATAPI_DEFAULT_MODEL is empty.", hint="Use a model's id, or leave it unset.", id="chatapi.E011"
        )
    ]


@checks.register(CHECK_TAG)
def check_end_user_header(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the header of end users' names is valid, and has no key, which would be stored."""
    wrong = _wrong_header(settings.END_USER_HEADER)
    hint = "Use a name such as x-end-user, or leave it unset."
    return wrong_values("CHATAPI_END_USER_HEADER", wrong, "not a header for end users' names", hint, "E012")


@checks.register(CHECK_TAG)
def check_client_certificate_header(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the header of clients' certificates is valid, and is none that says something else."""
    wrong = _wrong_header(settings.CLIENT_CERTIFICATE_HEADER)
    hint = "Use client-cert or another name that your proxies set, or leave it unset."
    what = "not a header for clients' certificates"
    return wrong_values("CHATAPI_CLIENT_CERTIFICATE_HEADER", wrong, what, hint, "E023")


def _wrong_header(name: str) -> list[str]:
    secret = {"authorization", "proxy-authorization", "cookie", *map(str.lower, all_key_headers())}
    return [] if not name or (HEADER_NAME.fullmatch(name) and name not in secret) else [name]


@checks.register(CHECK_TAG)
def check_failpoints(**_: Any) -> Sequence[checks.CheckMessage]:
    try:
        failpoints.parse(settings.FAILPOINTS)
    except ValueError as error:
        return [
            checks.Error(
                f"CHATAPI_FAILPOINTS: {error}", hint="Leave it unset outside of tests.", id="chatapi.E005"
            )
        ]
    return []


@checks.register(CHECK_TAG)
def check_metrics_token(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that a token for metrics is long enough and valid in a header."""
    if not settings.METRICS_TOKEN or BEARER_TOKEN.fullmatch(settings.METRICS_TOKEN):
        return []
    message = "CHATAPI_METRICS_TOKEN is not 16 or more letters, digits and signs out of -._~+/"
    return [checks.Error(message, hint="Use what `openssl rand -hex 16` prints.", id="chatapi.E008")]


@checks.register(CHECK_TAG)
def check_secrets(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the secrets are too long to be guessed, without showing them."""
    return [
        checks.Error(
            f"{variable} has fewer than {local_secrets.MIN_CHARACTERS} characters.",
            hint="Use what `openssl rand -hex 32` prints.",
            id="chatapi.E009",
        )
        for variable in local_secrets.NAMES
        if len(getattr(settings, variable.removeprefix("CHATAPI_"))) < local_secrets.MIN_CHARACTERS
    ]
