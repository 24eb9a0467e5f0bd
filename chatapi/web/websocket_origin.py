"""Refuses WebSocket handshakes from pages of another origin: a browser sends the session's cookie whichever
page opens the socket.

The rule is that of Django's CSRF check: the `Origin` header is the origin of the handshake itself (scheme,
host and port), or one of `CSRF_TRUSTED_ORIGINS`. Channels' AllowedHostsOriginValidator compares the host
alone.
"""

from typing import NamedTuple
from urllib.parse import urlsplit

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, WebSocketScope
from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

from accounts import client_ip

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """A web origin (RFC 6454), with its port even where that is the scheme's default."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> "Origin | None":
        """The origin in a header or a setting; None if the text is no origin, such as `null`."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            return None
        if not parts.scheme or not parts.hostname:
            return None
        return cls(parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme))

    def is_within(self, trusted: "Origin") -> bool:
        """Whether it is that origin; its host may begin with `*.`, for all subdomains."""
        if (self.scheme, self.port) != (trusted.scheme, trusted.port):
            return False
        return self.host == trusted.host or (
            trusted.host.startswith("*.") and is_same_domain(self.host, trusted.host[1:])
        )


class SameOrigin:
    """ASGI middleware for WebSockets; a handshake that it refuses is answered with 403."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(
        self, scope: WebSocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Serve the WebSocket, or refuse it."""
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
    """The origin that the handshake was sent to; None for a host that is not in `ALLOWED_HOSTS`: anybody's
    DNS may point here.
    """
    host = _header(scope, b"host")
    domain, _ = split_domain_port(host)
    if not validate_host(domain, settings.ALLOWED_HOSTS):
        return None
    return Origin.parse(f"{'https' if _is_secure(scope) else 'http'}://{host}")


def _is_secure(scope: WebSocketScope) -> bool:
    """Whether the browser's connection is encrypted: to this process, or to a trusted proxy that says so."""
    peer, _ = scope.get("client") or ("", None)
    is_forwarded = (
        client_ip.is_trusted(peer, settings.TRUSTED_PROXIES)
        and _header(scope, b"x-forwarded-proto") == "https"
    )
    return scope.get("scheme") == "wss" or is_forwarded


def _header(scope: WebSocketScope, name: bytes) -> str:
    """The header's value; blank if it is missing or repeated."""
    values = [value for each, value in scope["headers"] if each == name]
    return values[0].decode("latin-1") if len(values) == 1 else ""
