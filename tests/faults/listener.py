"""Listens to an answer in a thread of its own, while the test breaks something: what came, and when."""

import json
import threading
import time
from http.client import HTTPException
from typing import Any

from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for


class Listener:
    """One request and what its client has got so far."""

    def __init__(self, installation: Installation, model: str, **parameters: Any) -> None:
        """Asks at once."""
        self.status = 0
        self.generation_id = ""
        self.body: Any = None
        """The answer without streaming."""
        self.chunks: list[dict[str, Any]] = []
        self.is_done = False
        """`[DONE]` has come."""
        self.ended_at = 0.0
        self._client = Client(installation.url, installation.keys["live"])
        self._thread = threading.Thread(target=self._listen, args=(model, parameters), daemon=True)
        self._thread.start()

    @property
    def words(self) -> list[str]:
        """The text so far; each word is a token."""
        contents = [choice["delta"].get("content", "") for chunk in self.chunks for choice in chunk.get("choices", ())]
        return "".join(contents).split()

    @property
    def error(self) -> dict[str, Any]:
        """The error that ended it, in the stream or as a body."""
        last = self.body if self.body is not None else self.chunks[-1]
        error: dict[str, Any] = last["error"]
        return error

    def heard(self, tokens: int) -> "Listener":
        """Wait until so many tokens have come."""
        wait_for(lambda: len(self.words) >= tokens or not self._thread.is_alive(), f"{tokens} tokens")
        assert len(self.words) >= tokens, (self.status, self.body, self.chunks[-1:])
        return self

    def end(self) -> "Listener":
        """Wait until the answer has ended."""
        self._thread.join(30)
        assert not self._thread.is_alive(), f"still open after {len(self.chunks)} chunks"
        return self

    def _listen(self, model: str, parameters: dict[str, Any]) -> None:
        try:
            with self._client.asking(model, dialect="openai", **{"stream": True, **parameters}) as exchange:
                self.status = exchange.response.status
                self.generation_id = exchange.response.headers["x-generation-id"] or ""
                if exchange.response.headers["content-type"] == "application/json":
                    self.body = exchange.read().json
                    return
                for data in exchange.data():
                    assert not self.is_done, f"after [DONE] came {data}"
                    if data == "[DONE]":
                        self.is_done = True
                    else:
                        self.chunks.append(json.loads(data))
        except (OSError, HTTPException):
            pass  # a connection that breaks has no `is_done`
        finally:
            self.ended_at = time.monotonic()
