"""Refuses WebSocket handshakes of other origins, because browsers send the session's cookie with them.

The rule is that of Django's CSRF check: the `Origin` header must be the origin of the handshake (scheme, host
and port), or one of `CSRF_TRUSTED_ORIGINS`. Channels' AllowedHostsOriginValidator compares only the host.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, WebSocketScope
from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

from accounts import forwarding

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """A web origin (RFC 6454); its port is set even if it is the scheme's default."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> "Origin | None":
        """Return the origin in a header or a setting; None if the text is not an origin, such as `null`."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            return None
        if not parts.scheme or not parts.hostname:
            return None
        return cls(parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme))

    def is_within(self, trusted: "Origin") -> bool:
        """Return whether this is the trusted origin, whose host may begin with `*.` for all subdomains."""
        if (self.scheme, self.port) != (trusted.scheme, trusted.port):
            return False
        return self.host == trusted.host or (
            trusted.host.startswith("*.") and is_same_domain(self.host, trusted.host[1:])
        )


class SameOrigin:
    """ASGI middleware that refuses WebSocket handshakes of other origins with 403."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(
        self, scope: WebSocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        answer = self._application if _is_allowed(scope) else WebsocketDenier()
        await answer(scope, receive, send)


def _is_allowed(scope: WebSocketScope) -> bool:
    sent = Origin.parse(_header(scope, b"origin"))
    if sent is None:
        return False
    own = _own_origin(scope)
    trusted = filter(None, map(Origin.parse, settings.CSRF_TRUSTED_ORIGINS))
    return sent == own or any(sent.is_within(each) for each in trusted)


def _own_origin(scope: WebSocketScope) -> Origin | None:
    """Return the origin that the handshake was sent to; None if its host is not in `ALLOWED_HOSTS`."""
    forwarded = forwarding.of_scope(cast(Mapping[str, Any], scope), settings.TRUSTED_PROXIES)
    host = forwarded.host or _header(scope, b"host")
    domain, _ = split_domain_port(host)
    # A stranger's DNS name may point to this server, and would then be its own origin.
    if not validate_host(domain, settings.ALLOWED_HOSTS):
        return None
    # Whether the browser's connection, to this process or to a trusted proxy, is encrypted.
    is_secure = scope.get("scheme") == "wss" or forwarded.scheme == "https"
    return Origin.parse(f"{'https' if is_secure else 'http'}://{host}")


def _header(scope: WebSocketScope, name: bytes) -> str:
    """Return the header's value, empty if the header is missing or repeated."""
    values = [value for each, value in scope["headers"] if each == name]
    return values[0].decode("latin-1") if len(values) == 1 else ""
