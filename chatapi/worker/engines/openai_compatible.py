"""The engine for every upstream that speaks OpenAI's HTTP API: vLLM, llama-server, Ollama, OpenAI, another
chatapi; or, as `engine = "anthropic"`, Anthropic's (`wire/upstream/http_api.py`).

Only I/O is here: `chatapi.wire` decides what the bytes mean. The engine asks for a stream, so that a cap can
be enforced and a disconnect stops the upstream, unless the deployment is to send one JSON document.
"""

import asyncio
import math
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, TypeVar

import aiohttp
from aiohttp.client_proto import ResponseHandler

from accounts import loop_clock
from chatapi.fair_room import FairRoom, Room
from chatapi.wire import sse
from chatapi.wire.deltas import AnyDelta
from chatapi.wire.parameters import CUSTOM_TOOLS
from chatapi.wire.prompts import Messages
from chatapi.wire.protocols.envelope import renamed
from chatapi.wire.upstream import upstream_errors
from chatapi.wire.upstream.custom_tools import CustomCalls, as_functions
from chatapi.wire.upstream.http_api import OPENAI, UpstreamAPI
from chatapi.wire.upstream.upstream_errors import UpstreamError, failure_of_status
from chatapi.wire.upstream.upstream_kinds import UpstreamKind
from chatapi.worker.engines import Call, EngineError, Target
from chatapi.worker.engines.upstream_session import BEHIND_BYTES, is_broken, is_pooled, new_session
from chatapi.worker.runs.heavy_work import LIGHT_BYTES, estimate_prompt, in_thread, party
from usage.failpoints import failpoint

# An answer in one piece that is larger needs room: it is in memory until its end.
SMALL_ANSWER_BYTES = 1 << 20
# The most large answers that a worker reads at once, of all organizations and of one; the others wait.
ANSWERS, ANSWERS_EACH = 4, 2
MAX_ERROR_BYTES = 64 << 10
# The wait for usage and `[DONE]` after all choices have ended: some upstreams send neither.
USAGE_GRACE_S = 5.0
# The wait for the body of an error.
ERROR_GRACE_S = 5.0
# Timeouts and silently broken connections are noticed at most this much too late.
WATCH_S = 1.0
# After this many bytes other tasks run, because reading data that is already there never waits.
TURN_BYTES = 64 << 10
# The most that is read at once; its deltas are in memory while they wait for their turn.
READ_BYTES = 4 << 10
# The wait for the end of the body after `[DONE]`, which is cheaper than a new TLS connection.
REUSE_GRACE_S = 0.05
# An upstream's count of a prompt is rarely more than this many times ours.
MAX_COUNT_RATIO = 1.1


T = TypeVar("T")

_answers = FairRoom(ANSWERS, ANSWERS_EACH)


class OpenAICompatibleEngine:
    """Streams completions of OpenAI-compatible upstreams; one per process, as it pools the connections."""

    def __init__(self, api: UpstreamAPI = OPENAI) -> None:
        self._api = api
        self._session: aiohttp.ClientSession | None = None

    async def stream(self, call: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        """Yield the call's batches, one per read of the socket; see `Engine.stream`.

        Closing the generator closes the connection.
        """
        if self._session is None:
            self._session = new_session()
        exchange = None
        try:
            exchange = _Exchange(self._session, self._api, await _within_context(call))
            await exchange.open()
            failpoint("upstream.connected")
            while not exchange.is_over:
                if batch := await exchange.read():
                    yield batch
                    del batch  # it must not stay in memory until the next one comes
                    exchange.restart_clock()
            if end := exchange.custom_calls.translate(exchange.reader.end()):
                yield end
            if not exchange.reader.is_cut:
                await exchange.drain()
        except UpstreamError as error:
            # The client knows only the budget from which an effort was derived.
            names = {"reasoning_effort": "thinking"} if call.request.is_effort_estimated else {}
            failure = renamed(error.failure, names)
            raise EngineError(failure, is_retryable=not failure.is_request_fault, cause=error.cause) from None
        finally:
            if exchange is not None:
                exchange.close()

    async def close(self) -> None:
        """Close all connections; the engine opens new ones if it is used again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class _Exchange:
    """One request and its answer."""

    def __init__(self, session: aiohttp.ClientSession, api: UpstreamAPI, call: Call) -> None:
        self._session = session
        self._api = api
        self._call = call
        self._timeouts = call.target.timeouts
        self._loop = asyncio.get_running_loop()
        self._begin_clock()
        self._parser = api.parser()
        self._response: aiohttp.ClientResponse | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._is_document = False
        self._room: Room | None = None
        self._is_waiting = False
        self._bytes_of_turn = 0
        self._paused: ResponseHandler | None = None
        self._has_ended = False
        self._kind: UpstreamKind = api.kind(call.request)
        self.reader = self._kind.reader(call.request, call.max_output_tokens)
        self.custom_calls = CustomCalls()

    @property
    def is_over(self) -> bool:
        return self._has_ended or self.reader.is_done or self.reader.failure is not None

    async def open(self) -> None:
        """Send the request and read the answer's head; raise `UpstreamError` if it promises no completion."""
        try:
            response = self._response = await self._post()
        except (aiohttp.ClientError, TimeoutError, UnicodeError) as error:  # the last one: a bad host name
            _raise_upstream_error(error)
        self._watch(response)
        if response.status != 200:
            body = await self._read_error()
            raise UpstreamError(failure_of_status(response.status, body, response.headers))
        if response.content_type == "text/html":
            raise UpstreamError(upstream_errors.INVALID_RESPONSE)
        self._is_document = response.content_type == "application/json"

    async def read(self) -> Sequence[AnyDelta]:
        """Wait for some bytes, and return the deltas that they complete; maybe none."""
        assert self._response is not None
        if self._is_document:
            body = await self._read_body(self.reader.max_answer_bytes)
            return await self._translated(self.reader.read_answer, body, len(body))
        try:
            data = await self._receive(self._response)
        except UpstreamError:
            if not self.reader.is_complete:
                raise
            data = b""
        events = self._events(data)
        if events is None:
            rest = self._parser.close()
            return await self._translated(self.reader.read_rest, rest, sum(len(event.data) for event in rest))
        # Only the first event can be larger than one read: it began in an earlier one.
        return await self._translated(self.reader.read, events, len(events[0].data) if events else 0)

    async def _translated(
        self, read: Callable[[T], Sequence[AnyDelta]], data: T, size: int
    ) -> Sequence[AnyDelta]:
        """Return the deltas that `read` finds in the data, with calls of custom tools."""
        if size <= TURN_BYTES:
            return self.custom_calls.translate(read(data))
        return await in_thread(lambda: self.custom_calls.translate(read(data)))

    def _begin_clock(self) -> None:
        self._opened_at = self._waiting_since = loop_clock.monotonic()
        self._ends_at = self._opened_at + self._timeouts.total_ms / 1000

    def restart_clock(self) -> None:
        """Leave out the time that the consumer took for a batch: it is not the upstream's."""
        self._waiting_since = loop_clock.monotonic()

    async def drain(self) -> None:
        """Let the connection go back to the pool, if the body ends at once as it should."""
        assert self._response is not None
        content = self._response.content
        self._resume()
        if content.at_eof():  # as nearly always
            return
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(REUSE_GRACE_S):
                while not content.at_eof():
                    await content.read(TURN_BYTES)
                    await asyncio.sleep(0)

    def close(self) -> None:
        """Close the connection at once, unless the answer was read to its end and the connection returned."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._response is not None:
            self._response.close()
        if self._room is not None:
            self._room.release()
        # They refer to this object too; a cycle costs a garbage collection, which stops all streams.
        self._watchdog = self._response = self._paused = None

    def _events(self, data: bytes) -> list[sse.Event] | None:
        """Return the events that `data` completes, or None at the end of the stream."""
        if not data:
            self._has_ended = True
            return None
        try:
            return self._parser.feed(data)
        except sse.EventTooLargeError:
            raise UpstreamError(upstream_errors.INVALID_RESPONSE) from None

    async def _post(self) -> aiohttp.ClientResponse:
        """Send the request, and return the response when its head has come.

        A request on a pooled connection that turns out to be dead is sent again. If a new connection dies, it
        is not: the upstream may have received it.
        """
        is_light = self._call.request_bytes <= LIGHT_BYTES
        media_type, body = self._body() if is_light else await in_thread(self._body)
        self._begin_clock()  # without the time in the thread, which is not the upstream's
        while True:
            began = loop_clock.monotonic()
            try:
                return await self._post_once(media_type, body)
            except aiohttp.ConnectionTimeoutError:
                if loop_clock.monotonic() - began > self._timeouts.connect_ms / 1000 - loop_clock.LATE_S:
                    raise  # otherwise the event loop was late, and the request has not been sent
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not is_pooled.get():
                    raise

    def _body(self) -> tuple[str, bytes]:
        """Return the media type of the request, and its bytes."""
        call, request = self._call, self._call.request
        if CUSTOM_TOOLS not in call.target.extra_parameters:
            self.custom_calls.expect(request)
            request = as_functions(request)
        body = self._kind.body(
            request,
            model=call.target.upstream_model,
            max_output_tokens=call.max_output_tokens,
            extra_parameters=call.target.extra_parameters,
            is_streamed=call.target.is_streamed(call.request),
        )
        return self._kind.encode(body)

    async def _post_once(self, media_type: str, body: bytes) -> aiohttp.ClientResponse:
        async with loop_clock.timeout(self._deadline() - loop_clock.monotonic()):
            return await self._session.post(
                self._call.target.base_url.rstrip("/") + self._kind.path,
                data=body,
                headers={
                    "Content-Type": media_type,
                    **self._call.trace_headers,
                    **_headers(self._api, self._call.target),
                },
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=self._timeouts.connect_ms / 1000),
            )

    async def _read_error(self) -> bytes:
        """Return the body of an error, empty if it can't be read: then the status alone says enough."""
        try:
            async with loop_clock.timeout(ERROR_GRACE_S):
                return await self._read_body(MAX_ERROR_BYTES)
        except (UpstreamError, TimeoutError):
            return b""

    async def _read_body(self, max_bytes: int) -> bytes:
        """Return the whole body; raise `UpstreamError` for one over `max_bytes`."""
        assert self._response is not None
        body = bytearray()
        while data := await self._receive(self._response):
            body += data
            if len(body) > max_bytes:
                raise UpstreamError(self.reader.too_large)
            if len(body) > SMALL_ANSWER_BYTES and self._room is None:
                await self._wait_for_room()
        return bytes(body)

    async def _wait_for_room(self) -> None:
        """Wait until a large answer may be read; raise `UpstreamError` if that takes too long."""
        began_at = loop_clock.monotonic()
        try:
            async with loop_clock.timeout(self._ends_at - began_at):
                self._room = await _answers.acquire(party.get())
        except TimeoutError as error:
            _raise_upstream_error(error)
        self._opened_at += loop_clock.monotonic() - began_at  # the upstream was not read meanwhile

    async def _receive(self, response: aiohttp.ClientResponse) -> bytes:
        """Return what has come, or wait for the next bytes; empty at the end."""
        self._is_waiting = True
        try:
            if loop_clock.monotonic() >= self._deadline():  # an upstream may never let a read wait
                raise TimeoutError
            self._resume()
            data = await response.content.read(READ_BYTES)
        except (aiohttp.ClientError, TimeoutError) as error:
            _raise_upstream_error(error)
        finally:
            self._is_waiting = False
        if len(data) >= BEHIND_BYTES:
            self._pause(response)
        self._bytes_of_turn += len(data)
        if self._bytes_of_turn >= TURN_BYTES:
            self._bytes_of_turn = 0
            await asyncio.sleep(0)  # reading data that is already there lets no other task run
        return data

    def _pause(self, response: aiohttp.ClientResponse) -> None:
        """Leave what comes next in the kernel, until `_resume`."""
        if response.connection is not None and response.connection.protocol is not None:
            self._paused = response.connection.protocol
            self._paused.pause_reading()

    def _resume(self) -> None:
        if self._paused is not None:
            self._paused.resume_reading()
            self._paused = None

    def _watch(self, response: aiohttp.ClientResponse) -> None:
        """End a wait that lasts too long.

        Runs at intervals, because a timer for each read would cost more than the read.
        """
        if self._is_waiting and loop_clock.monotonic() >= self._deadline():
            response.content.set_exception(TimeoutError())
            return
        if self._is_waiting and is_broken(response):
            response.content.set_exception(aiohttp.ClientPayloadError())
            return
        timeouts = self._timeouts
        shortest_s = min(timeouts.first_delta_ms, timeouts.between_deltas_ms, timeouts.total_ms) / 1000
        self._watchdog = self._loop.call_later(min(WATCH_S, shortest_s / 4), self._watch, response)

    def _deadline(self) -> float:
        """Return the time at which the wait for a delta ends.

        Bytes without a delta do not extend it: an upstream may send comments for ever.
        """
        timeouts = self._timeouts
        if self.reader.is_complete:
            wait_until = self._waiting_since + USAGE_GRACE_S
        elif self.reader.has_started:
            wait_until = self._waiting_since + timeouts.between_deltas_ms / 1000
        else:
            wait_until = self._opened_at + timeouts.first_delta_ms / 1000
        return min(wait_until, self._ends_at)


async def _within_context(call: Call) -> Call:
    """Return the call; if its client gave no limit of tokens, with one that fits beside the prompt.

    Upstreams such as vLLM refuse a limit that does not fit.
    """
    request, context = call.request, call.max_prompt_tokens
    # No token is shorter than a byte, so most requests surely fit.
    if context is None or call.request_bytes + call.max_output_tokens <= context:
        return call
    if request.max_output_tokens is not None or not isinstance(request.prompt, Messages):
        return call
    estimated = await estimate_prompt(request, call.request_bytes)
    # At least half of the room that our count leaves, although the upstream may count more: a refusal is
    # better than an answer that is cut to a few tokens.
    left = max(context - math.ceil(MAX_COUNT_RATIO * estimated), (context - estimated) // 2)
    # If there is no room, the upstream says so.
    return replace(call, max_output_tokens=min(call.max_output_tokens, left)) if left > 0 else call


def _headers(api: UpstreamAPI, target: Target) -> dict[str, str]:
    """Return the request's headers, except for body and trace; none of them comes from the client."""
    headers = {
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "chatapi",
    }
    if target.api_key is None or not target.api_key.isprintable():  # no header can carry two lines
        raise UpstreamError(upstream_errors.NO_CREDENTIALS)
    return headers | api.headers(target.api_key)


def _raise_upstream_error(error: Exception) -> NoReturn:
    """Raise the `UpstreamError` for an error of aiohttp, without its text, which has URLs and headers."""
    # ConnectionTimeoutError is a TimeoutError, too: a machine without power refuses no connection.
    if isinstance(
        error,
        aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL | UnicodeError,
    ):
        failure = upstream_errors.UNREACHABLE
    elif isinstance(error, TimeoutError):
        failure = upstream_errors.TIMED_OUT
    elif isinstance(
        error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | aiohttp.ClientPayloadError
    ):
        failure = upstream_errors.DISCONNECTED
    else:
        failure = upstream_errors.INVALID_RESPONSE
    raise UpstreamError(failure, _cause(error)) from None


def _cause(error: Exception) -> str:
    """Return why no connection was made, in the system's words, which have no URL; empty for other errors."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return getattr(error.certificate_error, "verify_message", "")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection in time"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return ""
    reason = error.os_error
    # Only the words of these two are not those of their number.
    if isinstance(reason, ssl.SSLError | socket.gaierror):
        return reason.strerror or ""
    return os.strerror(reason.errno) if reason.errno else ""
