"""A plain HTTP client for the tests: it sees every byte of an answer as it comes, and can leave at any
moment.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from tests.installation import Installation

HELLO = [{"role": "user", "content": "hello"}]
TIMEOUT_S = 15


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body's JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error's members; fails unless the body is OpenAI's envelope and says that it is JSON."""
        assert self.headers["content-type"] == "application/json"
        document = self.json
        assert document.keys() == {"error"}
        error: dict[str, Any] = document["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["type"]
        return error


class Exchange:
    """A request whose answer has not been read yet."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self._response: HTTPResponse | None = None

    @property
    def response(self) -> HTTPResponse:
        """Wait for the head of the answer and return it."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    @property
    def is_over(self) -> bool:
        """Return whether the answer was read to its end and the server keeps the connection."""
        return self._response is not None and self._response.isclosed() and self._connection.sock is not None

    def data(self) -> Iterator[str]:
        """Yield the data of each event as it comes, `[DONE]` too, to the end of the answer; skip comments."""
        assert self.response.status == 200, self.response.read()
        while line := self.response.readline():
            if line.startswith(b"data: "):
                yield line[6:].rstrip(b"\n").decode()
            else:
                assert line == b"\n" or line.startswith(b":"), line

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON of each event as it comes; fails unless `[DONE]` comes once, as the last."""
        is_done = False
        for data in self.data():
            assert not is_done, f"after [DONE] came {data}"
            is_done = data == "[DONE]"
            if not is_done:
                yield json.loads(data)
        assert is_done

    def texts(self) -> Iterator[str]:
        """Yield the text of each content chunk as it comes."""
        for chunk in self.chunks():
            for choice in chunk["choices"]:
                if "content" in choice["delta"]:
                    yield choice["delta"]["content"]

    def read(self) -> Answer:
        """Return the whole answer."""
        return Answer(self.response.status, self.response.headers, self.response.read())

    def leave(self) -> float:
        """Close the connection; tells when, in seconds since the epoch."""
        if self._response is not None:
            self._response.close()
        self._connection.close()
        return time.time()


class Client:
    """Asks one server with one key."""

    def __init__(self, url: str, key: str, timeout_s: float = TIMEOUT_S, *, key_header: str = "") -> None:
        """Ask with this key, which is the whole value of `key_header`; without one it is a Bearer token."""
        self._address = urlsplit(url).netloc
        self._timeout_s = timeout_s
        self.key = key
        self._key_header = key_header

    @contextmanager
    def exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str | None]
    ) -> Iterator[Exchange]:
        """Send a request; the connection is closed in the end. A header that is None is left out."""
        key = {self._key_header: self.key} if self._key_header else {"Authorization": f"Bearer {self.key}"}
        named = {**key, "Content-Type": "application/json", **headers}
        connection = HTTPConnection(self._address, timeout=self._timeout_s)
        exchange = Exchange(connection)
        try:
            connection.request(
                method, path, body, {name: value for name, value in named.items() if value is not None}
            )
            yield exchange
        finally:
            exchange.leave()

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Answer:
        """Send a request and return the whole answer; `content_type=…` is the header Content-Type."""
        with self.exchange(method, path, body, _headers(headers)) as exchange:
            return exchange.read()

    @contextmanager
    def asking(
        self,
        model: str,
        *,
        dialect: str = "",
        header: str | None = None,
        idempotency_key: str | None = None,
        **parameters: Any,
    ) -> Iterator[Exchange]:
        """Ask for a completion; `dialect` is the URL's prefix, `header` is X-ChatAPI-Dialect."""
        path = f"/{dialect}/v1/chat/completions" if dialect else "/v1/chat/completions"
        body = json.dumps({"model": model, "messages": HELLO, **parameters}).encode()
        with self.exchange(
            "POST", path, body, {"X-ChatAPI-Dialect": header, "Idempotency-Key": idempotency_key}
        ) as exchange:
            yield exchange

    def complete(self, model: str, **parameters: Any) -> Answer:
        """Ask for a completion and read the whole answer."""
        with self.asking(model, **parameters) as exchange:
            return exchange.read()

    def stream(self, model: str, **parameters: Any) -> list[dict[str, Any]]:
        """Ask for a stream and read it to its end: its chunks."""
        with self.asking(model, stream=True, **parameters) as exchange:
            return list(exchange.chunks())


def clients_of(installation: Installation, code: str) -> dict[str, Client]:
    """Return clients of the keys that this code makes and prints, by their names."""
    secrets: dict[str, str] = json.loads(installation.shell(code))
    return {name: Client(installation.url, secret) for name, secret in secrets.items()}


def _headers(names: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name.replace("_", "-").title(): value for name, value in names.items()}
