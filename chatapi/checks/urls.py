"""Checks the URLs of databases, servers and of the service itself, and the IP addresses of proxies."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

from django.conf import settings
from django.core import checks

from accounts import ip_addresses
from accounts.redis_urls import REDIS_SCHEMES, is_redis, sentinel_urls, stream_urls, without_secrets
from chatapi import identity
from chatapi.checks import CHECK_TAG, wrong_values
from chatapi.transports import TRANSPORTS
from chatapi.wire.dialects import DIALECTS

_HOST = r"(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?"
ORIGIN = re.compile(rf"\*|[a-z][a-z0-9+.-]*://{_HOST}")
# Django's CSRF_TRUSTED_ORIGINS: `*.` stands for any subdomain.
TRUSTED_ORIGIN = re.compile(rf"https?://(?:\*\.)?{_HOST}")
# Django's ALLOWED_HOSTS: a dot in front stands for any subdomain.
ALLOWED_HOST = re.compile(r"\*|\.?[a-z0-9-]+(\.[a-z0-9-]+)*|\[[0-9a-f:.]+\]", re.IGNORECASE)
PATH_PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+")
MAX_PREFIX_CHARACTERS = 128
# Below a prefix with one of these names a path could mean two routes.
OWN_SEGMENTS = {"admin", "console", "docs", "static", "stripe", "v1", *DIALECTS}
REDIS_URLS = {
    "REDIS_URL": "REDIS_URL",
    "BROKER_URL": "CHATAPI_BROKER_URL",
    "STREAMS_URL": "CHATAPI_STREAMS_URL",
}
_OTHERS = ("BROKER_URL", "STREAMS_URL")
_URL_HINT = (
    "Use redis://HOST:PORT, rediss:// or unix:///PATH, or with sentinels "
    "redis+sentinel://HOST:26379,HOST:26379/NAME or rediss+sentinel://; percent-encode passwords (%2C for a "
    "comma). Cluster is not supported."
)
# The only values of these parameters of a rediss:// URL with which a certificate is verified.
VERIFYING = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}


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
        checks.Error(f"{where} {mistake}.{_same_as(where)}", hint=_URL_HINT, id="chatapi.E004")
        for where, url in _redis_urls()
        if (mistake := _mistake(url))
    ]


def _mistake(url: str) -> str:
    """Return the mistake in a Redis URL, or an empty text."""
    try:
        is_one = sentinel_urls(url) or (url.partition("://")[0] in REDIS_SCHEMES and "," not in url)
    except ValueError as error:
        return str(error)
    return "" if is_one else "must be a Redis URL"


def _redis_urls() -> list[tuple[str, str]]:
    """Return each Redis URL once, after a description for messages, which contains no secret."""
    urls = stream_urls()
    single = ["REDIS_URL", *(name for name in _OTHERS if getattr(settings, name) != settings.REDIS_URL)]
    single = [name for name in single if name != "STREAMS_URL" or len(urls) == 1]
    found = [(REDIS_URLS[name], getattr(settings, name)) for name in single] + [
        (f"CHATAPI_STREAMS_URL: server {number} ({without_secrets(url) or 'empty'})", url)
        for number, url in enumerate(urls)
        if len(urls) > 1
    ]
    # A transport of streams may be no Redis, but the broker is one.
    others = {url for url in urls if url.partition("://")[0] in TRANSPORTS and not is_redis(url)}
    broker = REDIS_URLS["REDIS_URL" if settings.BROKER_URL == settings.REDIS_URL else "BROKER_URL"]
    return [(where, url) for where, url in found if where == broker or url not in others]


def _same_as(where: str) -> str:
    """Return a sentence that names the other settings with the value of REDIS_URL, if there are any."""
    same = [REDIS_URLS[name] for name in _OTHERS if getattr(settings, name) == settings.REDIS_URL]
    if where != "REDIS_URL" or not same:
        return ""
    verb = "are" if len(same) > 1 else "is"
    return f" {' and '.join(same)} {verb} the same."


@checks.register(CHECK_TAG)
def check_stream_servers(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each server of streams is listed once, and that ids have room for their number."""
    urls, most = stream_urls(), identity.MAX_STREAM_SERVERS
    twice = [without_secrets(url) for at, url in enumerate(urls) if url in urls[:at]]
    found = wrong_values("CHATAPI_STREAMS_URL", twice, "listed twice", "List each server once.", "E016")
    if len(urls) > most:
        text = f"CHATAPI_STREAMS_URL has {len(urls)} servers."
        found.append(checks.Error(text, hint=f"List at most {most}.", id="chatapi.E016"))
    return found


@checks.register(CHECK_TAG)
def check_redis_certificates(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that no Redis URL turns the verification of the server's certificate off."""
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
def check_trusted_proxies(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each trusted proxy is an IP address or a network."""
    wrong = [proxy for proxy in settings.TRUSTED_PROXIES if not ip_addresses.is_ip_or_network(proxy)]
    return wrong_values(
        "CHATAPI_TRUSTED_PROXIES",
        wrong,
        "no address or network",
        "Use addresses and networks such as 10.0.0.5,10.0.0.0/8.",
        "E006",
    )


@checks.register(CHECK_TAG)
def check_origins(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each CORS origin has the form that browsers send."""
    wrong = [origin for origin in settings.CORS_ORIGINS if not ORIGIN.fullmatch(origin)]
    return wrong_values(
        "CHATAPI_CORS_ORIGINS",
        wrong,
        "no origin",
        "Use https://app.example.com, without a path, or * for any.",
        "E007",
    )


@checks.register(CHECK_TAG)
def check_trusted_origins(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each origin for forms has the form that browsers send."""
    wrong = [origin for origin in settings.CSRF_TRUSTED_ORIGINS if not TRUSTED_ORIGIN.fullmatch(origin)]
    hint = "Use https://chat.example.com, without a path, or https://*.example.com."
    return wrong_values("CHATAPI_CSRF_TRUSTED_ORIGINS", wrong, "no origin", hint, "E010")


@checks.register(CHECK_TAG)
def check_allowed_hosts(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that each allowed host is a name or an IP address, as Django compares it."""
    wrong = [host for host in settings.ALLOWED_HOSTS if not ALLOWED_HOST.fullmatch(host)]
    hint = "Use chat.example.com, without scheme, port and path; .example.com: also its subdomains; *: any."
    return wrong_values("CHATAPI_ALLOWED_HOSTS", wrong, "no host name", hint, "E013")


@checks.register(CHECK_TAG)
def check_path_prefix(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the prefix can be put in front of every path of ours."""
    prefix = settings.PATH_PREFIX
    is_path = len(prefix) <= MAX_PREFIX_CHARACTERS and PATH_PREFIX.fullmatch(prefix)
    is_good = not prefix or (is_path and prefix.split("/")[1] not in OWN_SEGMENTS)
    reserved = ", ".join(f"/{name}" for name in sorted(OWN_SEGMENTS))
    hint = f"Use a path such as /llm, without a slash at its end, that does not begin with {reserved}."
    return wrong_values("CHATAPI_PATH_PREFIX", [] if is_good else [prefix], "no prefix", hint, "E015")


@checks.register(CHECK_TAG)
def check_public_url(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that links in mail can begin with the service's URL."""
    url = settings.PUBLIC_URL
    wrong = [] if not url or (TRUSTED_ORIGIN.fullmatch(url) and "*" not in url) else [url]
    if settings.SENDS_EMAIL and not url and "*" in settings.ALLOWED_HOSTS:
        message = (
            "CHATAPI_PUBLIC_URL is empty and CHATAPI_ALLOWED_HOSTS is *: visitors could choose where "
            "links in mail lead."
        )
        return [checks.Error(message, hint="Use https://chat.example.com.", id="chatapi.E021")]
    return wrong_values("CHATAPI_PUBLIC_URL", wrong, "no origin", "Use https://chat.example.com.", "E021")
