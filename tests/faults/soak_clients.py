"""Who asks during a soak: patient clients, and ones that leave, read slowly, cancel, send again; each decided by its number."""

import json
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from chatapi.celery import GENERATE_TASK, app
from chatapi.serving import embedded_valkey
from chatapi.task_queue import TaskQueue
from tests.chatapi.http_client import Client, Exchange
from tests.installation import Installation

MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "half-a-second": {"tokens": 25, "rate": 50},
    "two-seconds": {"tokens": 100, "rate": 50},
    "refuses": {"status": 503},
    "resets": {"tokens": 20, "rate": 100, "rst_after": 10},
    "closes": {"tokens": 20, "fin_after": 10},
    "stalls": {"tokens": 20, "stall_after": 10},
    "talks-garbage": {"tokens": 20, "bad_json": 10},
}
MODEL_WEIGHTS = [40, 35, 10, 3, 3, 3, 3, 3]
ACTS = {"reads": 30, "wants it whole": 20, "leaves": 15, "reads slowly": 10, "cancels": 10, "sends it again": 10, "delivers it twice": 5}
POOR_PART = 0.1
TRIES = 6
PATIENCE_S = 40
"""Silence that a client bears: when processes start on a busy machine it takes them long."""


@dataclass
class Visit:
    """What one client asked for and what it got; times are the monotonic clock's."""

    act: str
    model: str
    prompt: str
    began_at: float
    ended_at: float = 0.0
    status: int = 0
    generation_id: str = ""
    ends: int = 0
    """Finishes and errors that came."""
    is_done: bool = False
    """The answer came to its end."""
    has_left: bool = False
    """The client did not wait for the end."""
    usage: dict[str, int] | None = None
    events: list[str] = field(default_factory=list)
    """What came after the end, which must be nothing."""
    failure: str = ""
    """What the client did not understand: the exception that ended it, which must be none."""

    @property
    def is_broken(self) -> bool:
        """The connection ended before the answer did, and not by the client."""
        return not self.is_done and not self.has_left


class Guest:
    """One client, with its own decisions."""

    def __init__(self, installation: Installation, number: int, chance: random.Random) -> None:
        self._installation = installation
        self._chance = chance
        (act,) = chance.choices(list(ACTS), list(ACTS.values()))
        (model,) = chance.choices(list(MODELS), MODEL_WEIGHTS)
        self._key = installation.keys["poor" if chance.random() < POOR_PART else "live"]
        self._client = Client(installation.url, self._key, PATIENCE_S)
        self._result = Visit(act, model, f"guest {number}", time.monotonic())

    def visit(self) -> Visit:
        """Ask, as this guest does; whatever fails in it is in the visit."""
        result = self._result
        try:
            if result.act == "sends it again":
                self._send_again()
            else:
                self._ask(stream=result.act != "wants it whole")
        except Exception as error:
            # In a thread it would be a traceback that nobody counts, and one guest less.
            result.failure = repr(error)
        result.ended_at = time.monotonic()
        return result

    def _send_again(self) -> None:
        """Leave, and come back with the same key until there is an answer."""
        key = {"Idempotency-Key": self._result.prompt.replace(" ", "-")}
        self._ask(stream=True, headers=key, leave_after=self._chance.randint(0, 5))
        for _ in range(TRIES):
            self._ask(stream=True, headers=key)
            if not self._result.is_broken:
                return
            time.sleep(0.5)

    def _ask(self, *, stream: bool, headers: Mapping[str, str] | None = None, leave_after: int | None = None) -> None:
        result = self._result
        result.is_done = result.has_left = False
        result.usage, result.ends = None, 0
        if result.act == "leaves":
            leave_after = self._chance.randint(0, 8)
        body = {"model": result.model, "messages": [{"role": "user", "content": result.prompt}], "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        asking = self._client.exchange("POST", "/openai/v1/chat/completions", json.dumps(body).encode(), headers or {})
        with suppress(OSError, HTTPException, ValueError), asking as exchange:
            if leave_after == 0:
                result.has_left = True
                return
            self._listen(exchange, leave_after)

    def _listen(self, exchange: Exchange, leave_after: int | None) -> None:
        result = self._result
        result.status = exchange.response.status
        result.generation_id = exchange.response.headers["x-generation-id"] or result.generation_id
        if exchange.response.headers["content-type"] == "application/json":
            document = exchange.read().json
            result.ends, result.is_done = 1, True
            result.usage = document.get("usage")
            return
        for number, data in enumerate(exchange.data(), start=1):
            if result.is_done:
                result.events.append(data)
            self._take(data)
            self._act(number)
            if number == leave_after and not result.is_done:
                result.has_left = True
                return

    def _take(self, data: str) -> None:
        result = self._result
        if data == "[DONE]":
            result.is_done = True
            return
        chunk = json.loads(data)
        result.ends += "error" in chunk or any(choice["finish_reason"] for choice in chunk["choices"])
        result.usage = chunk.get("usage") or result.usage

    def _act(self, number: int) -> None:
        """What this guest does after so many events."""
        act = self._result.act
        if act == "reads slowly":
            time.sleep(0.05)
        elif act == "cancels" and number == 4:
            self._client.send("POST", f"/v1/generations/{self._result.generation_id}/cancel", b"")
        elif act == "delivers it twice" and number == 4:
            self._deliver_again()

    def _deliver_again(self) -> None:
        queue = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
        path = str(embedded_valkey.socket_path(self._installation.folder))
        with suppress(RedisError), Redis(unix_socket_path=path, socket_timeout=1) as redis:
            message = queue.message(self._result.generation_id.removeprefix("chatcmpl-"))
            redis.lpush(queue.key, message, message)
