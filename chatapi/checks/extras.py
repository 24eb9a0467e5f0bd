"""Checks the settings of what is off by default: mail, sign-up, traces and payments."""

import re
from collections.abc import Iterator, Sequence
from email.utils import parseaddr
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.core import checks

from chatapi.checks import CHECK_TAG, wrong_values
from usage.payment import configuration

DOMAIN = re.compile(r"([a-z0-9-]+\.)+[a-z][a-z0-9-]+")
MAIL_ADDRESS = re.compile(r"[^@\s<>]+@[A-Za-z0-9.-]+")
COLLECTOR = re.compile(r"https?://[^/\s]")
SAMPLERS = tuple(
    f"{parent}{name}"
    for parent in ("", "parentbased_")
    for name in ("always_on", "always_off", "traceidratio")
)
RATIO = re.compile(r"0?\.[0-9]+|0|1(\.0+)?")


@checks.register(CHECK_TAG)
def check_email_from(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that mail has a sender, if it is sent."""
    sender = settings.DEFAULT_FROM_EMAIL
    is_good = not settings.SENDS_EMAIL or MAIL_ADDRESS.fullmatch(parseaddr(sender)[1])
    hint = "Use chatapi@example.com or Chat API <chatapi@example.com>: CHATAPI_EMAIL_URL is set."
    return wrong_values("CHATAPI_EMAIL_FROM", [] if is_good else [sender], "no mail address", hint, "E020")


@checks.register(CHECK_TAG)
def check_sign_up(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that people who sign up can get mail, and that the domains are domains."""
    if settings.SIGN_UP in ("open", "domain") and not settings.SENDS_EMAIL:
        message = f"CHATAPI_SIGN_UP={settings.SIGN_UP} needs mail, which confirms addresses."
        return [checks.Error(message, hint="Set CHATAPI_EMAIL_URL, or use invitation.", id="chatapi.E022")]
    domains = settings.SIGN_UP_DOMAINS
    wrong = [domain for domain in domains if not DOMAIN.fullmatch(domain)]
    if settings.SIGN_UP == "domain" and not domains:
        wrong = [""]
    hint = "Use domains such as example.com,example.org; CHATAPI_SIGN_UP=domain needs one."
    return wrong_values("CHATAPI_SIGN_UP_DOMAINS", wrong, "not a domain of e-mail addresses", hint, "E022")


@checks.register(CHECK_TAG)
def check_traces(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check OpenTelemetry's variables, whose wrong values its SDK would ignore, and that it is installed."""
    hint = "docs/tracing.md shows how to set it up; without an endpoint there are no traces."
    found = _trace_mistakes() if settings.EXPORTS_TRACES else ()
    return [checks.Error(each, hint=hint, id="chatapi.E017") for each in found]


def _trace_mistakes() -> Iterator[str]:
    name, argument = settings.TRACES_SAMPLER, settings.TRACES_SAMPLER_ARG
    if not COLLECTOR.match(settings.TRACES_ENDPOINT):
        yield "OTEL_EXPORTER_OTLP_ENDPOINT must be an http:// or https:// URL."
    if settings.TRACES_PROTOCOL != "http/protobuf":
        yield "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf."
    if name not in SAMPLERS:
        yield f"OTEL_TRACES_SAMPLER={name!r} must be one of {', '.join(SAMPLERS)}."
    if name.endswith("traceidratio") and not RATIO.fullmatch(argument):
        yield f"OTEL_TRACES_SAMPLER_ARG={argument!r} must be a number from 0 to 1."
    if not _has_opentelemetry():
        yield "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed."


def _has_opentelemetry() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


@checks.register(CHECK_TAG)
def check_payment(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check the variables of Stripe, and that its package is installed."""
    hint = "docs/payment.md shows how to set it up; without these variables there are no payments."
    return [checks.Error(each, hint=hint, id="chatapi.E019") for each in configuration.mistakes()]
