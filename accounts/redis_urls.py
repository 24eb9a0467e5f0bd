"""The Redis servers by their purpose.

`CHATAPI_STREAMS_URL` may be a list. Each generation's stream is on one of these servers. What is counted or
kept for all processes together, such as rate limits, attempts to sign in and tickets, is on one server: on
the broker if there are several servers for streams, so that a death of one of those refuses no request, or if
the server for streams is no Redis.

A URL names a server, or the sentinels that know where it is, in the form of Prefect, docket and the package
redis-sentinel-url: `redis+sentinel://[user:password@]host[:port][,host[:port]…]/name[/database]`, with the
parameters `sentinel_username` and `sentinel_password`.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode

from django.conf import settings

REDIS_SCHEMES = ("redis", "rediss", "unix")
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
"""By the scheme of the URL: the scheme of the connections to the sentinels and to the primary."""
SENTINEL_PORT = 26379
_SENTINEL = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?P<port>:[0-9]{1,5})?")
# Sentinel takes no other names.
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class SentinelURLs:
    """The servers that one URL with sentinels stands for, as URLs that redis-py can open."""

    name: str
    """The name by which the sentinels know the primary."""
    sentinels: tuple[str, ...] = field(repr=False)
    primary: str = field(repr=False)
    """The primary's URL, with `name` in place of host and port, which only the sentinels know."""

    @property
    def has_tls(self) -> bool:
        return self.primary.startswith("rediss://")


def sentinel_urls(url: str) -> SentinelURLs | None:
    """Return the servers behind a URL with sentinels, or None for any other URL.

    Raises `ValueError` for a wrong one; the text, which follows the name of a setting, has no part of it.
    """
    given_scheme, _, rest = url.partition("://")
    if (scheme := SENTINEL_SCHEMES.get(given_scheme)) is None:
        return None
    # Not parsed by `urlsplit`, which refuses several IPv6 addresses.
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    credentials, at, listed = authority.rpartition("@")
    name, _, database = path.partition("/")
    hosts = [_SENTINEL.fullmatch(each) for each in listed.split(",")]
    if None in hosts:
        raise ValueError("has no list of sentinels such as a:26379,b:26379")
    if not _NAME.fullmatch(name):
        raise ValueError("names no primary behind its sentinels")
    if not re.fullmatch(r"[0-9]*", database):
        raise ValueError("has no number of a database behind its primary")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    user, password = (quote(parameters.pop(f"sentinel_{key}", ""), "") for key in ("username", "password"))
    tls = {key: value for key, value in parameters.items() if key.startswith("ssl_")}
    own = f"{user}:{password}@" if user or password else ""
    return SentinelURLs(
        name,
        tuple(
            f"{scheme}://{own}{host[0]}{'' if host['port'] else f':{SENTINEL_PORT}'}?{urlencode(tls)}"
            for host in hosts
            if host
        ),
        f"{scheme}://{credentials}{at}{name}/{database or 0}?{urlencode(parameters)}",
    )


def stream_urls() -> list[str]:
    """Return the URLs of the servers of streams, in the order of their numbers."""
    urls: list[str] = []
    for part in settings.STREAMS_URL.split(","):
        scheme, _, rest = urls[-1].partition("://") if urls else ("", "", "")
        if scheme in SENTINEL_SCHEMES and "/" not in rest:
            urls[-1] += f",{part.strip()}"  # another sentinel of this URL
        else:
            urls.append(part.strip())
    return urls


def is_redis(url: str) -> bool:
    """Return whether the scheme is that of a Redis; the servers of streams may have another transport."""
    return url.partition("://")[0] in (*REDIS_SCHEMES, *SENTINEL_SCHEMES)


def shared_url() -> str:
    """Return the URL of the server with the data that all processes share."""
    urls = stream_urls()
    broker_url: str = settings.BROKER_URL
    return urls[0] if len(urls) == 1 and is_redis(urls[0]) else broker_url


def all_redis_urls() -> list[str]:
    return sorted({settings.BROKER_URL, *filter(is_redis, stream_urls())})


def without_secrets(url: str) -> str:
    """Return the URL's place, without user, password and parameters; "…" if they can't be told apart."""
    # Not parsed: signs that are not percent-encoded end a password early, or raise an error.
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    before, _, place = rest.rpartition("@")
    return f"{scheme}{separator}{'…' if '?' in before else place.partition('?')[0]}"
