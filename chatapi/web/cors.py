"""The CORS protocol: allows pages of other origins to call the API and read its responses.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope

from accounts.limits import IN_HEADERS
from chatapi import identity
from chatapi.api.client_routes import is_client_route
from chatapi.wire.protocols import PROTOCOLS, all_key_headers

ANY = "*"
MAX_AGE_SECONDS = b"600"
MAX_HEADERS_BYTES = 2_048
USUAL_HEADERS = ", ".join(
    dict.fromkeys(
        [
            *(name.lower() for name in all_key_headers()),
            "content-type",
            *(name for protocol in PROTOCOLS.values() for name in protocol.client_headers),
        ]
    )
).encode()
# The response headers that scripts may read in addition to the safelisted ones.
READABLE = b", ".join(
    [
        *dict.fromkeys(name for protocol in PROTOCOLS.values() for name in protocol.request_id_headers),
        b"x-generation-id", b"x-chatapi-ignored", b"deprecation", b"x-chatapi-warning",
        b"idempotent-replayed", b"location",
        b"openai-processing-ms", b"retry-after", b"retry-after-ms", b"x-should-retry",
        *(
            b"x-ratelimit-%s-%s" % (figure, unit.encode())
            for figure in (b"limit", b"remaining", b"reset")
            for unit in IN_HEADERS
        ),
        *dict.fromkeys(
            name
            for protocol in PROTOCOLS.values()
            for counts in IN_HEADERS
            for name, _ in protocol.limit_headers(counts, 0, 0, datetime.now(UTC))
        ),
    ]
)  # fmt: skip


class CrossOrigin:
    """ASGI middleware that allows these origins; `*` is any origin.

    It covers the API's routes, not the admin, and never allows cookies: a page sends its user's API key.
    """

    def __init__(self, application: ASGI3Application, origins: Collection[str]) -> None:
        self._application = application
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer a preflight; pass on any other request, and allow the page to read its response."""
        origin = self._allowed_origin(scope)
        if origin is None:
            await self._application(scope, receive, send)
        elif scope["method"] == "OPTIONS":  # type: ignore[typeddict-item]  # only HTTP has an origin here
            await _answer_preflight(scope, origin, send)
        else:
            await self._application(scope, receive, _readable(origin, send))

    def _allowed_origin(self, scope: Scope) -> bytes | None:
        if scope["type"] != "http" or not is_client_route(scope["path"]):
            return None
        origin = _header(scope, b"origin")
        is_allowed = origin in self._origins or ANY.encode() in self._origins
        return origin if is_allowed else None


def _header(scope: Scope, name: bytes) -> bytes | None:
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]  # type: ignore[typeddict-item]
    return next((value for key, value in headers if key == name), None)


async def _answer_preflight(scope: Scope, origin: bytes, send: ASGISendCallable) -> None:
    requested_headers = (_header(scope, b"access-control-request-headers") or USUAL_HEADERS)[
        :MAX_HEADERS_BYTES
    ]
    headers = [
        *_permission(origin),
        (b"x-request-id", identity.request_id(_header(scope, b"x-request-id"), identity.new_id())),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        # All of them: SDKs send a dozen of their own, and unknown headers change nothing.
        (b"access-control-allow-headers", requested_headers),
        (b"access-control-max-age", MAX_AGE_SECONDS),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _readable(origin: bytes, send: ASGISendCallable) -> ASGISendCallable:
    async def send_readable(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [
                *message.get("headers", ()),
                *_permission(origin),
                (b"access-control-expose-headers", READABLE),
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_readable


def _permission(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
