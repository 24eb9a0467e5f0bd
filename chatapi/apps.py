"""The app configuration, with the system checks of the settings.

E001  CHATAPI_DEFAULT_DIALECT is not a dialect
E002  a number is outside of its bounds, `MIN` and `MAX`
E003  the lease is too short for its heartbeat
E004  a Redis URL has a scheme that is not Redis's
E005  CHATAPI_FAILPOINTS names no failpoint
E006  CHATAPI_TRUSTED_PROXIES has a value that is not an IP address or network
E007  CHATAPI_CORS_ORIGINS has a value that is not an origin
E008  CHATAPI_METRICS_TOKEN is easy to guess, or not valid in a header
E009  a secret is easy to guess
E010  CHATAPI_CSRF_TRUSTED_ORIGINS has a value that is not an origin
E011  CHATAPI_DEFAULT_MODEL is empty
E012  CHATAPI_END_USER_HEADER is not the name of a header, or of one with a secret
E013  CHATAPI_ALLOWED_HOSTS has a value that is not a host name
E014  a rediss:// URL turns the verification of the server's certificate off
E015  CHATAPI_PATH_PREFIX is not a path, or begins like a route of our own
E016  CHATAPI_STREAMS_URL has a server twice, or too many servers
E017  a variable of OpenTelemetry is wrong, or its packages are not installed
E018  CHATAPI_REPLICA_DATABASE_URL or DATABASE_URL is not one of PostgreSQL
E019  a variable of Stripe is wrong or missing, or its package is not installed
E020  CHATAPI_EMAIL_FROM is not a mail address, though there is a mail server
E021  CHATAPI_PUBLIC_URL is not an origin, or is missing where the host of mailed links is anyone's choice
E022  CHATAPI_SIGN_UP lets people sign up whose address nothing confirms, or the domains are none
W001  a variable begins with CHATAPI_ and is not a setting
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from email.utils import parseaddr
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

from accounts import client_ip
from accounts.redis_urls import stream_urls, without_secrets
from chatapi import identity, local_secrets
from chatapi.wire.dialects import DIALECTS
from usage import failpoints
from usage.payment import configuration

CHECK_TAG = "chatapi"
MISSPELT = "chatapi.W001"
WEEK_MS = 7 * 24 * 60 * 60 * 1_000
# The largest values: far above useful ones, and within the range of the database, Redis and timers.
MAX = {
    "DATABASE_TIMEOUT_MS": WEEK_MS,
    "DATABASE_POOL_SIZE": 1_000,
    "WORKER_CONCURRENCY": 100_000,
    "MAX_OPEN_GENERATIONS": 1_000_000_000,
    "MAX_BODY_BYTES": 1024 * 1024 * 1024,
    "MAX_CONNECTIONS": 1_000_000,
    "MAX_CONNECTIONS_PER_ADDRESS": 1_000_000,
    "KEY_CACHE_MS": WEEK_MS,
    "FAILED_AUTHENTICATIONS_PER_MINUTE": 1_000_000,
    "LEASE_MS": WEEK_MS,
    "HEARTBEAT_MS": WEEK_MS,
    "REAPER_MS": WEEK_MS,
    "QUEUE_TTL_MS": WEEK_MS,
    "MAX_QUEUE_AGE_MS": WEEK_MS,
    "PING_MS": WEEK_MS,
    "TICKET_TTL_MS": WEEK_MS,
    "REFUSED_BODY_BYTES_PER_MINUTE": 1024 * 1024 * 1024 * 1024,
    "STREAM_TTL_MS": WEEK_MS,
    "STALL_MS": WEEK_MS,
    "LAME_DUCK_MS": WEEK_MS,
    "DRAIN_MS": WEEK_MS,
    "HUNG_MS": WEEK_MS,
}
# The smallest values that are not 1.
MIN = {
    "MAX_QUEUE_AGE_MS": 0,
    "PING_MS": 0,
    "LAME_DUCK_MS": 0,
    "FAILED_AUTHENTICATIONS_PER_MINUTE": 0,
    "REFUSED_BODY_BYTES_PER_MINUTE": 0,
    "HUNG_MS": 1_000,
}
_HOST = r"(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?"
ORIGIN = re.compile(rf"\*|[a-z][a-z0-9+.-]*://{_HOST}")
# Django's CSRF_TRUSTED_ORIGINS: `*.` stands for any subdomain.
TRUSTED_ORIGIN = re.compile(rf"https?://(?:\*\.)?{_HOST}")
# Django's ALLOWED_HOSTS: a dot in front stands for any subdomain.
ALLOWED_HOST = re.compile(r"\*|\.?[a-z0-9-]+(\.[a-z0-9-]+)*|\[[0-9a-f:.]+\]", re.IGNORECASE)
DOMAIN = re.compile(r"([a-z0-9-]+\.)+[a-z][a-z0-9-]+")
HEADER_NAME = re.compile(r"[a-z0-9-]{1,64}")
PATH_PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+")
MAX_PREFIX_CHARACTERS = 128
# Below a prefix with one of these names a path could mean two routes.
OWN_SEGMENTS = {"admin", "console", "docs", "static", "stripe", "v1", *DIALECTS}
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie"})
# A token by RFC 6750 section 2.1, with a length that can't be guessed.
BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
MAIL_ADDRESS = re.compile(r"[^@\s<>]+@[A-Za-z0-9.-]+")
COLLECTOR = re.compile(r"https?://[^/\s]")
SAMPLERS = tuple(
    f"{parent}{name}"
    for parent in ("", "parentbased_")
    for name in ("always_on", "always_off", "traceidratio")
)
RATIO = re.compile(r"0?\.[0-9]+|0|1(\.0+)?")
REDIS_URLS = {
    "REDIS_URL": "REDIS_URL",
    "BROKER_URL": "CHATAPI_BROKER_URL",
    "STREAMS_URL": "CHATAPI_STREAMS_URL",
}
REDIS_SCHEMES = ("redis", "rediss", "unix")
# The only values of these parameters of a rediss:// URL with which a certificate is verified.
VERIFYING = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}


class ChatAPIConfig(AppConfig):
    """The Django app `chatapi`."""

    name = "chatapi"

    def ready(self) -> None:
        """Arm a test's failpoints."""
        with suppress(ValueError):  # check_failpoints reports it
            failpoints.arm(settings.FAILPOINTS)


@checks.register(CHECK_TAG)
def check_dialect(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the default dialect exists."""
    if settings.DEFAULT_DIALECT in DIALECTS:
        return []
    message = f"CHATAPI_DEFAULT_DIALECT={settings.DEFAULT_DIALECT!r} is not a dialect."
    return [checks.Error(message, hint=f"Use one of {', '.join(sorted(DIALECTS))}.", id="chatapi.E001")]


@checks.register(CHECK_TAG)
def check_numbers(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the numbers are within their bounds."""
    numbers = {name: getattr(settings, name) for name in MAX}
    found = {name: _wrong_number(number, MIN.get(name, 1), MAX[name]) for name, number in numbers.items()}
    return [
        checks.Error(f"CHATAPI_{name}={numbers[name]} {wrong[0]}", hint=wrong[1], id="chatapi.E002")
        for name, wrong in found.items()
        if wrong is not None
    ]


def _wrong_number(number: int, least: int, most: int) -> tuple[str, str] | None:
    """Return the message and hint for a number that is out of bounds, or None."""
    if number > most:
        return "is too large.", f"Use {most} or less."
    if number < least:
        what = {0: ("is negative.", "Use 0 for none, or more."), 1: ("is not positive.", "Use 1 or more.")}
        return what.get(least, ("is too small.", f"Use {least} or more."))
    return None


@checks.register(CHECK_TAG)
def check_lease(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the lease outlasts one lost heartbeat."""
    if settings.LEASE_MS >= 2 * settings.HEARTBEAT_MS:
        return []
    message = (
        f"CHATAPI_LEASE_MS={settings.LEASE_MS} is too short for CHATAPI_HEARTBEAT_MS={settings.HEARTBEAT_MS}."
    )
    return [
        checks.Error(message, hint=f"Make the lease {2 * settings.HEARTBEAT_MS} or more.", id="chatapi.E003")
    ]


@checks.register(CHECK_TAG)
def check_replica(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that both databases are PostgreSQL's if there is a replica."""
    engines = {database["ENGINE"] for database in settings.DATABASES.values()}
    if not settings.REPLICA_DATABASE_URL or not any(engine.endswith("sqlite3") for engine in engines):
        return []
    message = "CHATAPI_REPLICA_DATABASE_URL and DATABASE_URL must be postgres:// URLs."
    return [checks.Error(message, hint="Leave it unset without PostgreSQL.", id="chatapi.E018")]


@checks.register(CHECK_TAG)
def check_redis_urls(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the clients can open the Redis URLs."""
    return [
        checks.Error(
            f"{where} must be a Redis URL.",
            hint="Use redis://HOST:PORT, rediss:// or unix:///PATH, and %2C for a comma in a password. "
            "Sentinel and Cluster are not supported.",
            id="chatapi.E004",
        )
        for where, url in _redis_urls()
        if url.partition("://")[0] not in REDIS_SCHEMES or "," in url
    ]


def _redis_urls() -> list[tuple[str, str]]:
    """Return each Redis URL behind the words that name it, which have no secret of it."""
    urls = stream_urls()
    single = [name for name in REDIS_URLS if name != "STREAMS_URL" or len(urls) == 1]
    return [(REDIS_URLS[name], getattr(settings, name)) for name in single] + [
        (f"CHATAPI_STREAMS_URL: server {number} ({without_secrets(url) or 'empty'})", url)
        for number, url in enumerate(urls)
        if len(urls) > 1
    ]


@checks.register(CHECK_TAG)
def check_stream_servers(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each server of streams is listed once, and that an id has room for its number."""
    urls, most = stream_urls(), identity.MAX_STREAM_SERVERS
    twice = [without_secrets(url) for at, url in enumerate(urls) if url in urls[:at]]
    found = _wrong_values("CHATAPI_STREAMS_URL", twice, "listed twice", "List each server once.", "E016")
    if len(urls) > most:
        text = f"CHATAPI_STREAMS_URL has {len(urls)} servers."
        found.append(checks.Error(text, hint=f"List at most {most}.", id="chatapi.E016"))
    return found


@checks.register(CHECK_TAG)
def check_redis_certificates(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that no Redis URL lets an unknown server answer."""
    return [
        checks.Error(
            f"{variable}: {parameter} must be {right}.",
            hint="Leave it out; ssl_ca_certs=/FILE names the certificate of your own authority.",
            id="chatapi.E014",
        )
        for variable, url in _redis_urls()
        for parameter, value in parse_qsl(url.partition("?")[2], keep_blank_values=True)
        if (right := VERIFYING.get(parameter, value.lower())) != value.lower()
    ]


@checks.register(CHECK_TAG)
def check_failpoints(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the failpoints exist."""
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
def check_trusted_proxies(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each trusted proxy is an IP address or a network."""
    wrong = [proxy for proxy in settings.TRUSTED_PROXIES if not client_ip.is_ip_or_network(proxy)]
    return _wrong_values(
        "CHATAPI_TRUSTED_PROXIES",
        wrong,
        "no address or network",
        "Use 10.0.0.5 or 10.0.0.0/8, with commas.",
        "E006",
    )


@checks.register(CHECK_TAG)
def check_origins(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each CORS origin has the form that browsers send."""
    wrong = [origin for origin in settings.CORS_ORIGINS if not ORIGIN.fullmatch(origin)]
    return _wrong_values(
        "CHATAPI_CORS_ORIGINS",
        wrong,
        "no origin",
        "Use https://app.example.com, without a path, or * for any.",
        "E007",
    )


@checks.register(CHECK_TAG)
def check_end_user_header(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the header that names end users can be one, and that no key is stored as a name."""
    name = settings.END_USER_HEADER
    is_good = not name or (HEADER_NAME.fullmatch(name) and name not in SECRET_HEADERS)
    wrong = [] if is_good else [name]
    hint = "Use a name such as x-end-user, or leave it unset."
    return _wrong_values("CHATAPI_END_USER_HEADER", wrong, "no header for names", hint, "E012")


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


@checks.register(CHECK_TAG)
def check_trusted_origins(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each origin for forms has the form that browsers send."""
    wrong = [origin for origin in settings.CSRF_TRUSTED_ORIGINS if not TRUSTED_ORIGIN.fullmatch(origin)]
    hint = "Use https://chat.example.com, without a path, or https://*.example.com."
    return _wrong_values("CHATAPI_CSRF_TRUSTED_ORIGINS", wrong, "no origin", hint, "E010")


@checks.register(CHECK_TAG)
def check_allowed_hosts(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each allowed host is a name or an IP address, as Django compares it."""
    wrong = [host for host in settings.ALLOWED_HOSTS if not ALLOWED_HOST.fullmatch(host)]
    hint = "Use chat.example.com, without scheme, port and path, .example.com or *."
    return _wrong_values("CHATAPI_ALLOWED_HOSTS", wrong, "no host name", hint, "E013")


@checks.register(CHECK_TAG)
def check_path_prefix(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the prefix can be put in front of every path of ours."""
    prefix = settings.PATH_PREFIX
    is_path = len(prefix) <= MAX_PREFIX_CHARACTERS and PATH_PREFIX.fullmatch(prefix)
    is_good = not prefix or (is_path and prefix.split("/")[1] not in OWN_SEGMENTS)
    reserved = ", ".join(f"/{name}" for name in sorted(OWN_SEGMENTS))
    hint = f"Use a path such as /llm, without a slash at its end, that does not begin with {reserved}."
    return _wrong_values("CHATAPI_PATH_PREFIX", [] if is_good else [prefix], "no prefix", hint, "E015")


@checks.register(CHECK_TAG)
def check_email_from(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that mail has a sender, if it is sent."""
    sender = settings.DEFAULT_FROM_EMAIL
    is_good = not settings.SENDS_EMAIL or MAIL_ADDRESS.fullmatch(parseaddr(sender)[1])
    hint = "Use chatapi@example.com or Chat API <chatapi@example.com>: CHATAPI_EMAIL_URL is set."
    return _wrong_values("CHATAPI_EMAIL_FROM", [] if is_good else [sender], "no mail address", hint, "E020")


@checks.register(CHECK_TAG)
def check_public_url(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that links in mail can begin with the service's address."""
    url = settings.PUBLIC_URL
    wrong = [] if not url or (TRUSTED_ORIGIN.fullmatch(url) and "*" not in url) else [url]
    if settings.SENDS_EMAIL and not url and "*" in settings.ALLOWED_HOSTS:
        message = (
            "CHATAPI_PUBLIC_URL is empty and CHATAPI_ALLOWED_HOSTS is *: visitors choose where mail leads"
        )
        return [checks.Error(message, hint="Use https://chat.example.com.", id="chatapi.E021")]
    return _wrong_values("CHATAPI_PUBLIC_URL", wrong, "no origin", "Use https://chat.example.com.", "E021")


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
    hint = "Use example.com, with commas; CHATAPI_SIGN_UP=domain needs one."
    return _wrong_values("CHATAPI_SIGN_UP_DOMAINS", wrong, "no domain of addresses", hint, "E022")


@checks.register(CHECK_TAG)
def check_traces(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check the variables of OpenTelemetry that its SDK would replace by defaults, and that it is there."""
    if not settings.EXPORTS_TRACES:
        return []
    name, argument = settings.TRACES_SAMPLER, settings.TRACES_SAMPLER_ARG
    is_ratio = name.endswith("traceidratio")
    mistakes = {
        "OTEL_EXPORTER_OTLP_ENDPOINT must be an http:// or https:// URL.": not COLLECTOR.match(
            settings.TRACES_ENDPOINT
        ),
        "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf.": settings.TRACES_PROTOCOL != "http/protobuf",
        f"OTEL_TRACES_SAMPLER={name!r} must be one of {', '.join(SAMPLERS)}.": name not in SAMPLERS,
        f"OTEL_TRACES_SAMPLER_ARG={argument!r} must be a number from 0 to 1.": is_ratio
        and not RATIO.fullmatch(argument),
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed.": not _has_opentelemetry(),
    }
    hint = "docs/tracing.md shows how to set it up; without an endpoint there are no traces."
    return [
        checks.Error(mistake, hint=hint, id="chatapi.E017")
        for mistake, is_made in mistakes.items()
        if is_made
    ]


@checks.register(CHECK_TAG)
def check_payment(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check the variables of Stripe, and that its package is there."""
    hint = "docs/payment.md shows how to set it up; without these variables there are no payments."
    return [checks.Error(each, hint=hint, id="chatapi.E019") for each in configuration.mistakes()]


def _has_opentelemetry() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


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


def _wrong_values(
    variable: str, wrong: Sequence[str], what: str, hint: str, number: str
) -> list[checks.CheckMessage]:
    """Return an error for each wrong value of a list."""
    return [
        checks.Error(f"{variable}: {value!r} is {what}.", hint=hint, id=f"chatapi.{number}")
        for value in wrong
    ]


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
