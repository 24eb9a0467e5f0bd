"""Only pages of this origin, or of trusted ones, may open a WebSocket: the same host on another port is
another origin.
"""

import pytest
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.testing import WebsocketCommunicator
from pytest_django.fixtures import Settings

from chatapi.web.websocket_origin import SameOrigin

Headers = dict[str, str]


class Anybody(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """Accepts every WebSocket that reaches it."""


async def is_let_in(headers: Headers, *, scheme: str = "ws", peer: str = "192.0.2.1") -> bool:
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    communicator = WebsocketCommunicator(SameOrigin(Anybody.as_asgi()), "/admin/live/feed", sent)
    communicator.scope |= {"scheme": scheme, "client": (peer, 1)}
    accepted, _ = await communicator.connect()
    await communicator.disconnect()
    return bool(accepted)


@pytest.fixture(autouse=True)
def hosts(settings: Settings) -> None:
    """Allow one host, and forms of pages of other origins."""
    settings.ALLOWED_HOSTS = ["chat.example.com", "[::1]"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://console.example.com", "https://*.trusted.example:8443"]


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://chat.example.com", "chat.example.com"),
        ("http://chat.example.com:8000", "chat.example.com:8000"),
        ("http://chat.example.com", "chat.example.com:80"),
        ("http://CHAT.example.com", "chat.example.com"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("https://console.example.com", "chat.example.com"),
        ("https://console.example.com:443", "chat.example.com"),
        ("https://a.trusted.example:8443", "chat.example.com"),
    ],
)
async def test_its_own_pages_and_trusted_ones_are_let_in(origin: str, host: str) -> None:
    assert await is_let_in({"origin": origin, "host": host})


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://chat.example.com:9000", "chat.example.com:8000"),
        ("http://chat.example.com:9000", "chat.example.com"),
        ("http://chat.example.com", "chat.example.com:8000"),
        ("https://chat.example.com", "chat.example.com"),
        ("http://evil.example", "chat.example.com"),
        ("http://evil.example", "evil.example"),
        ("http://chat.example.com.evil.example", "chat.example.com"),
        ("http://chat.example.com@evil.example", "chat.example.com"),
        ("http://console.example.com", "chat.example.com"),
        ("https://console.example.com:8443", "chat.example.com"),
        ("https://a.trusted.example", "chat.example.com"),
        ("https://eviltrusted.example:8443", "chat.example.com"),
        ("http://chat.example.com:port", "chat.example.com"),
        ("http://[::1", "[::1"),
        ("null", "chat.example.com"),
        ("", ""),
    ],
)
async def test_all_others_are_refused(origin: str, host: str) -> None:
    assert not await is_let_in({"origin": origin, "host": host})


async def test_no_origin_is_refused() -> None:
    assert not await is_let_in({"host": "chat.example.com"})


@pytest.mark.parametrize(
    ("peer", "host", "expected"),
    [
        ("10.0.0.5", "chat.example.com", True),
        ("10.0.0.5", "evil.example", False),
        ("192.0.2.1", "chat.example.com", False),
    ],
)
async def test_only_a_trusted_proxy_says_what_host_it_was(
    settings: Settings, peer: str, host: str, expected: bool
) -> None:
    settings.TRUSTED_PROXIES = ["10.0.0.0/8"]
    headers = {
        "origin": f"https://{host}",
        "host": "inner",
        "x-forwarded-proto": "https",
        "x-forwarded-host": host,
    }
    assert await is_let_in(headers, scheme="ws", peer=peer) == expected


@pytest.mark.parametrize(("scheme", "peer", "is_forwarded", "expected"), [
    ("wss", "192.0.2.1", False, True),
    ("ws", "10.0.0.5", True, True),
    ("ws", "10.0.0.5", False, False),
    ("ws", "192.0.2.1", True, False),
])  # fmt: skip
async def test_only_a_trusted_proxy_says_that_it_was_https(
    settings: Settings, scheme: str, peer: str, is_forwarded: bool, expected: bool
) -> None:
    settings.TRUSTED_PROXIES = ["10.0.0.0/8"]
    headers = {"origin": "https://chat.example.com", "host": "chat.example.com"}
    headers |= {"x-forwarded-proto": "https"} if is_forwarded else {}
    assert await is_let_in(headers, scheme=scheme, peer=peer) == expected
