"""The Redis servers by their purpose.

`CHATAPI_STREAMS_URL` may be a list. Each generation's stream is on one of these servers. What is counted or
kept for all processes together, such as rate limits, attempts to sign in and tickets, is on one server: on
the broker if there are several servers for streams, so that a death of one of those refuses no request.
"""

from django.conf import settings


def stream_urls() -> list[str]:
    """Return the URLs of the servers of streams, in the order of their numbers."""
    return [url.strip() for url in settings.STREAMS_URL.split(",")]


def shared_url() -> str:
    """Return the URL of the server with what all processes share."""
    urls = stream_urls()
    broker_url: str = settings.BROKER_URL
    return urls[0] if len(urls) == 1 else broker_url


def all_urls() -> list[str]:
    return sorted({settings.BROKER_URL, *stream_urls()})


def without_secrets(url: str) -> str:
    """Return the URL's place, without user, password and parameters; "…" if they can't be told apart."""
    # Not parsed: signs that are not percent-encoded end a password early, or raise an error.
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    before, _, place = rest.rpartition("@")
    return f"{scheme}{separator}{'…' if '?' in before else place.partition('?')[0]}"
