"""The clients of a soak, in every protocol: patient ones, and ones that leave, read slowly, cancel or come
back. Each client's number decides what it does.
"""

import json
import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from chatapi.celery import GENERATE_TASK, app
from chatapi.serving import embedded_valkey
from chatapi.task_queue import TaskQueue
from tests.faults.soak_connections import Connections, KeepingClient
from tests.faults.soak_protocols import PROTOCOLS, SHARES
from tests.faults.soak_visits import Heard, Visit
from tests.installation import Installation

MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "half-a-second": {"tokens": 25, "rate": 50},
    "two-seconds": {"tokens": 100, "rate": 50},
    "five-seconds": {"tokens": 250, "rate": 50},
    "refuses": {"status": 503},
    "resets": {"tokens": 20, "rate": 100, "rst_after": 10},
    "closes": {"tokens": 20, "fin_after": 10},
    "stalls": {"tokens": 20, "stall_after": 10},
    "talks-garbage": {"tokens": 20, "bad_json": 10},
}
MODEL_WEIGHTS = [35, 30, 10, 10, 3, 3, 3, 3, 3]
"""Some answers take longer than a process that is to stop may take."""
EMBEDDING_MODELS: dict[str, dict[str, Any]] = {
    "embeds": {},
    "embeds-slowly": {"ttft_ms": 800},
    "refuses-to-embed": {"status": 503},
}
EMBEDDING_WEIGHTS = [6, 3, 1]
POOR_PART = 0.1
CANARY = "guest-canary"
"""A word of every prompt that occurs nowhere else."""
# Made once, because all threads share kombu's in-memory transport, from which it takes its template.
QUEUE = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
CLOSING_PART = 0.25
"""The part of the clients that send `Connection: close`; the others keep their connections."""
TRIES = 8
AWAY = (503, 529)
"""The statuses of a service that is away for the moment, in OpenAI's protocols and in Anthropic's."""
BACKGROUND_S = 40
"""The longest time of a response in the background, also after a death."""
PATIENCE_S = 40
"""The longest silence that a client accepts: on a busy machine, processes take long to start."""

Listening = Generator[int, None, None]
"""Yields the number of events that have come: 0 when the request is sent."""


class Guest:
    """One client, with its own decisions."""

    def __init__(
        self,
        installation: Installation,
        number: int,
        chance: random.Random,
        connections: Connections | None = None,
    ) -> None:
        """Keep the connections of this caller's earlier visits in `connections`."""
        self._installation = installation
        self._chance = chance
        (protocol,) = chance.choices(list(SHARES), list(SHARES.values()))
        self._protocol = PROTOCOLS[protocol]
        (act,) = chance.choices(list(self._protocol.acts), list(self._protocol.acts.values()))
        models = (
            (EMBEDDING_MODELS, EMBEDDING_WEIGHTS) if protocol == "embeddings" else (MODELS, MODEL_WEIGHTS)
        )
        (model,) = chance.choices(list(models[0]), models[1])
        key = installation.keys["poor" if chance.random() < POOR_PART else "live"]
        closes = chance.random() < CLOSING_PART
        self._connections = connections or Connections()
        self._client = KeepingClient(installation.url, key, PATIENCE_S, self._connections, closes=closes)
        self._result = Visit(act, model, f"{CANARY} {number}", protocol=protocol)
        self._headers = {"Idempotency-Key": f"guest-{number}"} if self._result.is_keyed else {}
        self._acts: dict[str, Callable[[], object]] = {
            "wants it whole": lambda: self._ask(stream=False),
            "leaves": lambda: self._ask(leave_after=self._events_borne(0, 8)),
            "sends it again": self._send_again,
            "attaches": self._attach,
            "resumes": self._resume,
            "fetches it later": self._fetch_later,
            "continues": self._continue,
            "runs in the background": self._run_in_background,
            "cancels in the background": self._cancel_in_background,
        }

    def visit(self) -> Visit:
        """Send this guest's requests, and record every failure in the visit."""
        result = self._result
        try:
            self._acts.get(result.act, self._ask)()
        except Exception as error:
            # Else it would end the guest's thread with a traceback that no verdict counts.
            result.failure = repr(error)
        return result

    # ---- what guests do

    def _send_again(self) -> None:
        """Leave, and repeat the request with the same key until there is an answer."""
        self._ask(leave_after=self._events_borne(0, 5))
        self._until_answered(self._ask)

    def _attach(self) -> None:
        """Send the same request a second time while the first one is being answered."""
        heard, listening = self._asking()
        for number in listening:
            if number == 2:
                break
        self._until_answered(self._ask)
        self._listen(heard, listening)

    def _resume(self) -> None:
        """Leave in mid-stream, read the stream from its beginning, leave again, and go on behind the last
        event.
        """
        generation_id = self._ask(leave_after=self._chance.randint(1, 8)).generation_id
        if generation_id:
            self._pick_up(generation_id, leave_after=self._chance.randint(1, 8))

    def _fetch_later(self) -> None:
        """Send the request without waiting for an answer, and fetch the stream as soon as it has begun."""
        accepted = self._until_answered(lambda: self._ask(headers={"Prefer": "respond-async"}))
        if accepted.status == 202:
            self._pick_up(accepted.generation_id)

    def _continue(self) -> None:
        """Send a request, and continue from its response."""
        first = self._ask(stream=self._chance.random() < 0.5)
        if first.usage is not None:
            self._ask(stream=self._chance.random() < 0.5, previous_response_id=first.generation_id)

    def _run_in_background(self) -> None:
        """Ask for a response in the background, and read its events."""
        accepted = self._until_answered(lambda: self._ask(stream=False, background=True))
        if accepted.is_accepted:
            self._pick_up(accepted.generation_id, by_number=True)

    def _cancel_in_background(self) -> None:
        """Ask for a response in the background, stop it, and poll it until it has ended."""
        accepted = self._until_answered(lambda: self._ask(stream=False, background=True))
        if not accepted.is_accepted:
            return
        path = f"/v1/responses/{accepted.generation_id}"
        time.sleep(self._chance.uniform(0, 1.5))
        self._until_answered(lambda: self._listen(*self._open("POST", f"{path}/cancel", b"", {})))
        give_up_at = time.monotonic() + BACKGROUND_S
        while (found := self._until_answered(lambda: self._listen(*self._open("GET", path, None, {})))) and (
            found.is_accepted
        ):
            assert time.monotonic() < give_up_at, f"{path} has not ended"
            time.sleep(0.3)

    def _pick_up(
        self, generation_id: str, leave_after: int | None = None, *, by_number: bool = False
    ) -> None:
        """Follow the stream of a generation from its beginning over as many connections as needed; the first
        may be left. `by_number`: by the events' own numbers, as Responses have them.
        """
        before = Heard(time.monotonic())

        def go_on() -> Heard:
            nonlocal before
            if by_number:
                first = before.number is None
                after = "" if first else f"&starting_after={before.number}"
                path, headers = f"/v1/responses/{generation_id}?stream=true{after}", {}
            else:
                first = not before.event_id
                path = f"/v1/generations/{generation_id}/stream"
                headers = {} if first else {"Last-Event-ID": before.event_id}
            heard, listening = self._open("GET", path, None, headers)
            heard.go_on_behind(before)
            before = self._listen(heard, listening, leave_after if first else None)
            if heard.status == 200:
                # A stream of Responses that goes on behind an event says its id only at its end.
                heard.generation_id = heard.generation_id or generation_id
            return heard

        self._until_answered(go_on)

    def _act(self, heard: Heard, number: int) -> None:
        """Perform this guest's act after the given number of events."""
        act = self._result.act
        if act == "reads slowly":
            time.sleep(0.05)
        elif act == "cancels" and number == 4:
            with suppress(OSError, HTTPException):
                self._client.send("POST", f"/v1/generations/{heard.generation_id}/cancel", b"")
        elif act == "delivers it twice" and number == 4:
            self._deliver_again(heard.generation_id)

    def _deliver_again(self, generation_id: str) -> None:
        path = str(embedded_valkey.socket_path(self._installation.folder))
        with suppress(RedisError), Redis(unix_socket_path=path, socket_timeout=1) as redis:
            message = QUEUE.message(generation_id[-32:], 1)
            redis.lpush(QUEUE.key, message, message)

    # ---- how guests ask and listen

    def _until_answered(self, ask: Callable[[], Heard]) -> Heard:
        """Ask again after a while if there is no whole answer, or the service is away for the moment."""
        heard = ask()
        for _ in range(TRIES):
            if heard.is_done and heard.status not in AWAY:
                break
            time.sleep(0.5)
            heard = ask()
        return heard

    def _events_borne(self, least: int, most: int) -> int:
        """Return the number of events after which to leave; clients of embeddings leave before the answer."""
        return 0 if self._result.protocol == "embeddings" else self._chance.randint(least, most)

    def _ask(
        self,
        *,
        stream: bool = True,
        headers: Mapping[str, str] | None = None,
        leave_after: int | None = None,
        **members: Any,
    ) -> Heard:
        heard, listening = self._asking(stream=stream, headers=headers, **members)
        return self._listen(heard, listening, leave_after)

    def _asking(
        self, *, stream: bool = True, headers: Mapping[str, str] | None = None, **members: Any
    ) -> tuple[Heard, Listening]:
        result = self._result
        body = {"model": result.model, **self._protocol.body(result.prompt, stream), **members}
        sent = {**self._headers, **(headers or {})}
        return self._open("POST", self._protocol.path, json.dumps(body).encode(), sent)

    def _open(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[Heard, Listening]:
        heard = Heard(time.monotonic(), protocol=self._result.protocol)
        self._result.heard.append(heard)
        return heard, self._events(heard, method, path, body, headers)

    def _listen(self, heard: Heard, listening: Listening, leave_after: int | None = None) -> Heard:
        """Listen to the end, or for this number of events."""
        for number in listening:
            self._act(heard, number)
            if number == leave_after and not heard.is_done:
                heard.has_left = True
                listening.close()
        return heard

    def _events(
        self, heard: Heard, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Listening:
        number = 0
        try:
            with self._client.exchange(method, path, body, headers) as exchange:
                yield number
                response = exchange.response
                heard.hear_head(time.monotonic())
                if not heard.begin(response):
                    return
                # A line without an end: the connection broke in the middle of it.
                while (line := response.readline()).endswith(b"\n"):
                    if heard.take(line.decode().rstrip("\n")):
                        heard.hear_event(time.monotonic())
                        number += 1
                        yield number
        except (OSError, HTTPException, ValueError):
            pass  # the connection broke: the answer has not come to its end
        finally:
            heard.ended_at = time.monotonic()
