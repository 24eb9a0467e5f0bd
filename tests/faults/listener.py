"""Records an answer and its times in a thread of its own, while the test breaks something."""

import json
import threading
import time
from http.client import HTTPException
from typing import Any

from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

PATIENCE_S = 30
"""The longest silence: longer than dead processes take to start again on a busy machine."""


class Listener:
    """One request and what its client has got so far."""

    def __init__(self, installation: Installation, model: str, *, url: str = "", **parameters: Any) -> None:
        """Send the request at once, to `url` if it is given, else to the web process."""
        self.status = 0
        self.generation_id = ""
        self.body: Any = None
        """The answer without streaming."""
        self.chunks: list[dict[str, Any]] = []
        self.is_done = False
        """`[DONE]` has come."""
        self.ended_at = 0.0
        self._client = Client(url or installation.url, installation.keys["live"], PATIENCE_S)
        self._thread = threading.Thread(target=self._listen, args=(model, parameters), daemon=True)
        self._thread.start()

    @property
    def words(self) -> list[str]:
        """Return the text so far; each word is a token."""
        contents = [
            choice["delta"].get("content", "") for chunk in self.chunks for choice in chunk.get("choices", ())
        ]
        return "".join(contents).split()

    @property
    def is_broken(self) -> bool:
        """Return whether the connection ended before the answer did."""
        return self.body is None and not self.is_done

    @property
    def has_ended(self) -> bool:
        """Return whether the answer has ended, in any way."""
        return not self._thread.is_alive()

    @property
    def ends(self) -> int:
        """Return the number of ends that have come: a finish_reason, an answer in one piece, or an error."""
        if self.body is not None:
            return 1
        finishes = [
            choice for chunk in self.chunks for choice in chunk.get("choices", ()) if choice["finish_reason"]
        ]
        return len(finishes) + sum("error" in chunk for chunk in self.chunks)

    @property
    def usage(self) -> dict[str, Any] | None:
        """Return the usage in the answer, if there is one."""
        last = self.body if self.body is not None else self.chunks[-1] if self.chunks else {}
        return last.get("usage")

    @property
    def error(self) -> dict[str, Any]:
        """Return the error that ended it, in the stream or as a body."""
        last = self.body if self.body is not None else self.chunks[-1]
        error: dict[str, Any] = last["error"]
        return error

    def heard(self, tokens: int) -> "Listener":
        """Wait until this number of tokens has come."""
        wait_for(lambda: len(self.words) >= tokens or not self._thread.is_alive(), f"{tokens} tokens")
        assert len(self.words) >= tokens, (self.status, self.body, self.chunks[-1:])
        return self

    def end(self) -> "Listener":
        """Wait until the answer has ended."""
        self._thread.join(2 * PATIENCE_S)
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
