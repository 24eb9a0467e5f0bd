"""Requests that no HTTP library would send, byte by byte, each on the connection that the test holds."""

import re
from typing import Self

from tests.chatapi.web.probe_process import Client, Response

NOT_WELL_FORMED = (400, "invalid_request")
LINE_TOO_LONG = (414, "uri_too_long")
HEADERS_TOO_LARGE = (431, "headers_too_large")


class RawClient(Client):
    """One TCP connection to an installation, and the key that requests carry unless they say otherwise."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__(port)
        self.key = key

    def __enter__(self) -> Self:
        return self

    def head_of(self, method: str, target: str, *headers: str | bytes, version: str = "HTTP/1.1") -> bytes:
        """Return a request's head with these headers beside Host, Authorization and Content-Type; not sent
        yet.
        """
        lines = [
            f"{method} {target} {version}",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.key}",
            "Content-Type: application/json",
        ]
        encoded = [line if isinstance(line, bytes) else line.encode("latin-1") for line in (*lines, *headers)]
        return b"\r\n".join(encoded) + b"\r\n\r\n"

    def ask(self, request: bytes) -> Response:
        """Send these bytes and read one answer."""
        self.send(request)
        return self.response()


def refusal(response: Response) -> tuple[int, str]:
    """Return status and code of an error, after checks that hold for every refusal."""
    error = response.error
    assert 400 <= response.status < 500, error
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", response.headers["x-request-id"])
    assert "x-generation-id" not in response.headers
    return response.status, error["code"]
