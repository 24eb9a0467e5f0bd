"""A cheap scripted OpenAI-compatible upstream: the model's name sets its behaviour (see `bench.behaviour`).

Every frame is built once per script, so that serving a token is one timer and one write, and the gateway
under test gets nearly the whole machine. `GET /v1/models` and `GET /stats` answer too; the process stops by
itself after `--seconds`.

    python -m bench.upstream --port 27100
"""

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, cast

import httptools
import msgspec
import uvloop

from bench.behaviour import LETTERS
from bench.scripts import ID_PLACEHOLDER, Script, error_answer, http_answer, stream_script, whole_script

LISTED_MODELS = ("tok64-d0", "tok100-d20", "tok200-d20")


class StreamOptions(msgspec.Struct):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class Message(msgspec.Struct):
    """The used part of a message, whose last letter chooses the answer's."""

    content: Any = None


class Request(msgspec.Struct):
    """The fields of a chat request that change the answer; the rest is ignored."""

    model: str
    messages: list[Message] = []
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def letter(self) -> str:
        """Return the letter that the answer's tokens start with."""
        content = self.messages[-1].content if self.messages else None
        return content[-1] if isinstance(content, str) and content and content[-1] in LETTERS else "w"

    @property
    def wants_usage(self) -> bool:
        """Return whether a stream should end with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


@dataclass
class Counters:
    """The figures of `/stats`."""

    requests: int = 0
    completed: int = 0
    aborted: int = 0
    tokens: int = 0


class Playback:
    """Plays one script on a schedule that begins with the request, so that delays do not add up; pauses while
    the client does not read.
    """

    def __init__(
        self, script: Script, answer_id: bytes, transport: asyncio.Transport, ended: Callable[[], None]
    ) -> None:
        self.script, self.answer_id, self.transport, self.ended = script, answer_id, transport, ended
        self.loop = asyncio.get_running_loop()
        behaviour = script.behaviour
        self.interval_seconds = behaviour.delay_ms * behaviour.tokens_per_write / 1000
        self.due_at = self.loop.time() + behaviour.first_ms / 1000
        if not script.writes:  # an answer that is not streamed comes when a stream would have ended
            self.due_at += behaviour.delay_ms * (behaviour.tokens - 1) / 1000
        self.position = 0
        self.is_paused = False
        self.timer: asyncio.Handle | None = None
        if script.head:
            self.write(script.head)
        self.schedule()

    def write(self, frames: bytes) -> None:
        self.transport.write(frames.replace(ID_PLACEHOLDER, self.answer_id))

    def schedule(self) -> None:
        if self.due_at > self.loop.time():
            self.timer = self.loop.call_at(self.due_at, self.step)
        else:
            self.timer = self.loop.call_soon(self.step)

    def step(self) -> None:
        self.timer = None
        if self.is_paused:
            return
        if self.position < len(self.script.writes):
            self.write(self.script.writes[self.position])
            self.position += 1
            self.due_at += self.interval_seconds
        if self.position < len(self.script.writes):
            self.schedule()
        else:
            self.end()

    def end(self) -> None:
        if self.script.behaviour.drop_after_tokens is not None:
            self.transport.close()
            return
        self.write(self.script.tail)
        self.ended()

    def resume(self) -> None:
        self.is_paused = False
        if self.timer is None:
            self.schedule()

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class UpstreamConnection(asyncio.Protocol):
    """One client's connection: reads requests one after the other and plays their scripts."""

    def __init__(self, counters: Counters, answer_numbers: "count[int]") -> None:
        self.counters, self.answer_numbers = counters, answer_numbers
        self.parser = httptools.HttpRequestParser(self)
        self.path, self.body = b"", b""
        self.playback: Playback | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.playback is not None:
            self.playback.cancel()
            self.counters.aborted += 1

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def pause_writing(self) -> None:
        if self.playback is not None:
            self.playback.is_paused = True

    def resume_writing(self) -> None:
        if self.playback is not None:
            self.playback.resume()

    # httptools calls the next four.
    def on_message_begin(self) -> None:
        self.path, self.body = b"", b""

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.playback is not None:
            self.transport.close()  # a pipelined request: no client under test sends one
        elif self.path == b"/v1/traces":  # the collector of `chatapi-traced`
            self.transport.write(http_answer(200, {}))
        elif self.parser.get_method() == b"POST":
            self.answer_chat()
        else:
            self.transport.write(self.answer_get(self.path.partition(b"?")[0]))

    def answer_get(self, path: bytes) -> bytes:
        if path == b"/stats":
            return http_answer(200, asdict(self.counters))
        if path == b"/health":  # vllm-router asks for it before it starts
            return http_answer(200, {})
        if path == b"/v1/models":
            models = [
                {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "bench"}
                for name in LISTED_MODELS
            ]
            return http_answer(200, {"object": "list", "data": models})
        return error_answer(404, f"no such page: {path.decode(errors='replace')}")

    def answer_chat(self) -> None:
        self.counters.requests += 1
        try:
            request = msgspec.json.decode(self.body, type=Request)
            script = (
                stream_script(request.model, request.letter, request.wants_usage, request.n)
                if request.stream
                else whole_script(request.model, request.letter, request.n)
            )
        except msgspec.DecodeError as error:
            self.transport.write(error_answer(400, str(error)))
            return
        except ValueError as error:
            self.transport.write(error_answer(404, str(error), code="model_not_found"))
            return
        if script.behaviour.error_status is not None:
            self.transport.write(error_answer(script.behaviour.error_status, "an injected failure"))
            return
        answer_id = b"chatcmpl-%016x" % next(self.answer_numbers)
        self.playback = Playback(script, answer_id, self.transport, lambda: self.completed(script))

    def completed(self, script: Script) -> None:
        self.playback = None
        self.counters.completed += 1
        self.counters.tokens += script.behaviour.tokens
        if not self.parser.should_keep_alive():
            self.transport.close()


async def serve(port: int, seconds: float) -> None:
    """Serve on 127.0.0.1 for this long."""
    counters, answer_numbers = Counters(), count(1)
    server = await asyncio.get_running_loop().create_server(
        lambda: UpstreamConnection(counters, answer_numbers), "127.0.0.1", port, backlog=4096
    )
    async with server:
        await asyncio.sleep(seconds)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="A scripted OpenAI-compatible upstream on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=27100)
    parser.add_argument("--seconds", type=float, default=3600, help="stop by itself after this long")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.seconds))


if __name__ == "__main__":
    main()
