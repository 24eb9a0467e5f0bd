"""The honest clients beside an attack: paced streams, short requests, and a probe of /healthz each 50 ms.

    python -m bench.hostile.witness http://127.0.0.1:8000/opentoken/v1 --key ck_live_... --model tok500-d20
    --output FILE

Prints `streaming` when every stream has begun, and writes one `Witnessed` as JSON to `--output` when they
have ended.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.answers import AnswerError, Content, split_events
from bench.behaviour import Behaviour
from bench.client import Client, Exchange, clock
from bench.hostile.measurement import Probe, Stream, Witnessed
from bench.load import Load, Timings, check_exchange, token_arrivals

STREAMS = 8
PROBE_SECONDS = 0.05
PROBE_TIMEOUT_SECONDS = 120.0
REQUEST_SECONDS = 0.25
REQUEST_MODEL = "tok3-d0"
UNANSWERED = "unanswered"
CUT_SHORT_SECONDS = 1.0
"""A request that has waited for less than this when the streams end is left out."""
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

Ask = Callable[[], Awaitable[str]]
"""Sends one request; returns the problem with the answer, empty if it is right."""


class Prober:
    """`GET /healthz`, over a new connection each or over one that is kept."""

    def __init__(self, port: int, *, keeps_connection: bool) -> None:
        self.port, self.keeps_connection = port, keeps_connection
        self.connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> str:
        """Send one request; a kept connection that the server has closed is opened again once."""
        was_kept = self.connection is not None
        problem = await self.exchange()
        if problem and was_kept:
            problem = await self.exchange()
        if problem or not self.keeps_connection:
            self.drop()
        return problem

    async def exchange(self) -> str:
        """Send one request and return the problem with the answer; empty if it is right."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                if self.connection is None:
                    self.connection = await asyncio.open_connection("127.0.0.1", self.port)
                reader, writer = self.connection
                writer.write(HEALTHZ)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:  # a TimeoutError is an OSError
            self.drop()
            return type(error).__name__
        status = head.split(b" ", 2)[1].decode()
        if b"connection: close" in head.lower():
            self.drop()
        return "" if status == "200" else status

    def drop(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection[1].transport.abort()
        self.connection = None


async def again_and_again(ask: Ask, pause_seconds: float, probes: list[Probe]) -> None:
    """Ask every `pause_seconds`, or as soon as the last answer is there. When cancelled, record a request
    that is still unanswered, with the time until then.
    """
    while True:
        sent_at, problem = clock(), UNANSWERED
        try:
            problem = await ask()
        finally:
            seconds = clock() - sent_at
            if problem != UNANSWERED or seconds > CUT_SHORT_SECONDS:
                probes.append(Probe(sent_at, seconds, problem))
        await asyncio.sleep(max(0.0, sent_at + pause_seconds - clock()))


def requester(client: Client, load: Load) -> Ask:
    """Return a function that requests a short stream and checks it."""

    async def ask() -> str:
        await client.request()
        return problem_of(client.exchanges.pop(), load)

    return ask


def problem_of(exchange: Exchange, load: Load) -> str:
    """Return the problem with an answer; empty if it is right."""
    try:
        check_exchange(exchange, load, Timings())
    except AnswerError as problem:
        return str(problem)
    return ""


def stream_of(exchange: Exchange, load: Load) -> Stream:
    """Return the record of a stream, whole or cut off."""
    body = b"".join(part for _, part in exchange.parts)
    contents = [Content(event.end_bytes, text_of(event.data)) for event in split_events(body)]
    arrivals = token_arrivals(exchange, [content for content in contents if content.text])
    return Stream([round(arrived_at, 5) for arrived_at in arrivals], problem_of(exchange, load))


def text_of(data: bytes) -> str:
    """Return the text of an event; empty unless it is a chunk."""
    try:
        return str(msgspec.json.decode(data)["choices"][0]["delta"].get("content") or "")
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return ""


def load_of(base_url: str, key: str, model: str, timeout_seconds: float) -> Load:
    """Return a load in the form that the load generator's checks take."""
    return Load(base_url, key, model, STREAMS, None, 0, 0, 0, timeout_seconds, True, {})


async def all_begun(client: Client) -> None:
    """Wait until each stream has sent something beyond its head, or all have ended."""
    while sum(len(exchange.parts) > 2 for exchange in client.exchanges) < STREAMS:
        await asyncio.sleep(0.02)
        if all(exchange.ended_at for exchange in client.exchanges):
            return


async def witness(base_url: str, key: str, model: str, patience_seconds: float) -> Witnessed:
    """Run the streams to their end, with probes and short requests beside them."""
    behaviour = Behaviour.parse(model)
    timeout_seconds = behaviour.tokens * behaviour.delay_ms / 1000 + patience_seconds
    load = load_of(base_url, key, model, timeout_seconds)
    short = load_of(base_url, key, REQUEST_MODEL, patience_seconds)
    client = Client(base_url, key, model, is_stream=True, timeout_seconds=timeout_seconds)
    short_client = Client(base_url, key, REQUEST_MODEL, is_stream=True, timeout_seconds=patience_seconds)
    port = urlsplit(base_url).port or 80
    fresh: list[Probe] = []
    kept: list[Probe] = []
    requests: list[Probe] = []
    asking = [
        asyncio.create_task(again_and_again(Prober(port, keeps_connection=False).ask, PROBE_SECONDS, fresh)),
        asyncio.create_task(again_and_again(Prober(port, keeps_connection=True).ask, PROBE_SECONDS, kept)),
        asyncio.create_task(again_and_again(requester(short_client, short), REQUEST_SECONDS, requests)),
    ]
    streams = [asyncio.create_task(client.request()) for _ in range(STREAMS)]
    await all_begun(client)
    print("streaming", flush=True)
    await asyncio.gather(*streams)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    return Witnessed([stream_of(exchange, load) for exchange in client.exchanges], fresh, kept, requests)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Honest clients that watch what an attack does to them.")
    parser.add_argument("base_url", help="up to and including /v1")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", default="tok500-d20", help="see bench/behaviour.py")
    parser.add_argument(
        "--patience-seconds", type=float, default=45, help="how much later than planned a stream may end"
    )
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    witnessed = uvloop.run(
        witness(arguments.base_url, arguments.key, arguments.model, arguments.patience_seconds)
    )
    arguments.output.write_bytes(msgspec.json.encode(witnessed))


if __name__ == "__main__":
    main()
