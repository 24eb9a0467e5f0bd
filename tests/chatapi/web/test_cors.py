"""Pages of other origins: which the API answers, with which headers."""

import re
from typing import Any

import pytest

from chatapi.web.cors import CrossOrigin

APP, STRANGER = "https://app.example", "https://stranger.example"


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"x-request-id", b"req_1")]})
    await send({"type": "http.response.body", "body": b"{}"})


async def ask(origins: list[str], method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Return the status and headers of the answer."""
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {"type": "http", "method": method, "path": path, "headers": sent}
    shown: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        shown.append(message)

    await CrossOrigin(application, origins)(scope, receive, send)
    start, _ = shown
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/openai/v1/models", "/v1/generations/x/stream", "/openai/models", "/v1"],
)
@pytest.mark.parametrize("origins", [[APP], ["https://other.example", APP], ["*"]])
async def test_an_answer_can_be_read_by_a_page_that_is_allowed_errors_too(
    path: str, origins: list[str]
) -> None:
    status, headers = await ask(origins, "POST", path, origin=APP)
    assert (status, headers["access-control-allow-origin"], headers["vary"]) == (401, APP, "origin")
    readable = set(headers["access-control-expose-headers"].split(", "))
    assert {"x-generation-id", "x-ratelimit-remaining-tokens", "retry-after"} <= readable
    assert {"request-id", "anthropic-ratelimit-tokens-reset"} <= readable
    assert {"deprecation", "x-chatapi-warning", "x-chatapi-ignored"} <= readable
    assert headers["x-request-id"] == "req_1"
    assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    "wanted",
    ["authorization,content-type,x-stainless-retry-count", "x-api-key,anthropic-version,anthropic-beta"],
)
async def test_a_preflight_allows_what_sdks_send(wanted: str) -> None:
    status, headers = await ask(
        [APP],
        "OPTIONS",
        "/v1/chat/completions",
        origin=APP,
        access_control_request_method="POST",
        access_control_request_headers=wanted,
    )
    assert (status, headers["access-control-allow-origin"], headers["access-control-allow-headers"]) == (
        204,
        APP,
        wanted,
    )
    assert headers["access-control-allow-methods"] == "GET, POST, DELETE"


@pytest.mark.parametrize(
    ("wish", "expected"), [("mine-1", "mine-1"), ("a b", "req_[0-9a-f]{32}"), ("", "req_[0-9a-f]{32}")]
)
async def test_a_preflight_has_an_id_like_every_answer(wish: str, expected: str) -> None:
    _, headers = await ask([APP], "OPTIONS", "/v1/models", origin=APP, x_request_id=wish)
    assert re.fullmatch(expected, headers["x-request-id"])


@pytest.mark.parametrize("path", ["/admin/", "/", "/docs"])
async def test_the_admin_and_the_pages_are_nobody_elses(path: str) -> None:
    _, headers = await ask(["*"], "GET", path, origin=APP)
    assert headers == {"x-request-id": "req_1"}


@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
async def test_a_foreign_origin_gets_no_cors_headers(method: str) -> None:
    assert await ask([APP], method, "/v1/models", origin=STRANGER) == (401, {"x-request-id": "req_1"})


async def test_a_request_without_origin_gets_the_answer_as_it_is() -> None:
    assert await ask(["*"], "GET", "/v1/models") == (401, {"x-request-id": "req_1"})
