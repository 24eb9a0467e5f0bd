"""The process that parses large bodies: what comes back from it, and how it ends. In an installation:
`test_large_bodies.py`.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from subprocess import Popen
from typing import Any

import pytest

from chatapi.web import body_parser
from chatapi.web.body_parser import BodyParser, ParserUnavailable
from chatapi.wire.parsed_request import ParsedRequest, parse
from chatapi.wire.protocols.chat.request import NAME as CHAT
from chatapi.wire.protocols.text_completions.request import NAME as TEXT
from chatapi.wire.requests import InvalidRequest
from tests.wire.hostile_bodies import CHAT_BODIES
from tests.wire.request_bodies import chat_body, text_body

LARGE = chat_body(messages=[{"role": "user", "content": "x" * 4_000_000}])


@pytest.fixture
async def parser() -> AsyncIterator[BodyParser]:
    parser = BodyParser()
    yield parser
    await parser.close()


def in_pieces(body: bytes) -> list[bytes]:
    return [body[start : start + 60_000] for start in range(0, len(body), 60_000)]


@pytest.mark.parametrize(
    ("body", "endpoint", "default_model", "options"),
    [
        (chat_body(), CHAT, None, {}),
        (b'{"messages":[{"role":"user","content":"hi"}]}', CHAT, "usual", {"is_ticket": True}),
        (chat_body(stream_options=5), CHAT, None, {"ignored_parameters": frozenset({"stream_options"})}),
        (text_body(n=3, dream=1), TEXT, None, {}),
        (LARGE, CHAT, None, {}),
    ],
    ids=["chat", "ticket", "ignored", "text", "large"],
)
async def test_it_answers_as_if_it_were_parsed_here(
    parser: BodyParser, body: bytes, endpoint: str, default_model: str | None, options: dict[str, Any]
) -> None:
    for _ in range(2):
        found = await parser.parse(in_pieces(body), endpoint, default_model, **options)
        assert found == parse(body, endpoint, default_model, **options)


@pytest.mark.parametrize(
    "body",
    [b"", b"[", chat_body(n=0, stream=True), chat_body(model="m" * 200), b"[0" + b",0" * 300_000 + b"]"],
)
async def test_a_refusal_comes_back_whole(parser: BodyParser, body: bytes) -> None:
    with pytest.raises(InvalidRequest) as here:
        parse(body, CHAT, None)
    with pytest.raises(InvalidRequest) as there:
        await parser.parse([body], CHAT, None)
    assert vars(there.value) == vars(here.value)
    assert (await parser.parse([chat_body()], CHAT, None)).summary.model == "m"


async def test_what_takes_too_long_is_refused_and_the_next_is_not(
    parser: BodyParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_parser, "CPU_LIMIT_S", 0.01)
    with pytest.raises(InvalidRequest, match="too long"):
        await parser.parse([CHAT_BODIES["escaped quotes"](4_000_000)], CHAT, None)
    assert (await parser.parse([chat_body()], CHAT, None)).summary.model == "m"


async def test_one_that_dies_or_stands_still_is_replaced(parser: BodyParser) -> None:
    await parser.parse([chat_body()], CHAT, None)
    child = parser._child
    assert child is not None
    child.process.kill()
    with pytest.raises(ParserUnavailable):
        await parser.parse([LARGE], CHAT, None)
    assert await parser.parse([LARGE], CHAT, None) == parse(LARGE, CHAT, None)


async def begin_endless_parsing(parser: BodyParser) -> "tuple[asyncio.Task[ParsedRequest], Popen[bytes]]":
    """Return the task, and the child, which stands still with the beginning of the body."""
    await parser.parse([chat_body()], CHAT, None)
    assert parser._child is not None
    child = parser._child.process
    child.send_signal(signal.SIGSTOP)
    pieces = in_pieces(LARGE)
    parsing = asyncio.create_task(parser.parse(pieces, CHAT, None))
    await until(lambda: len(pieces) < len(in_pieces(LARGE)))
    return parsing, child


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_ends_the_parsing_of_its_body(parser: BodyParser) -> None:
    parsing, child = await begin_endless_parsing(parser)
    parsing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parsing
    assert child.returncode is not None
    assert await parser.parse([LARGE], CHAT, None) == parse(LARGE, CHAT, None)


async def test_a_client_that_leaves_while_the_child_starts_has_its_body_parsed_by_nobody(
    parser: BodyParser,
) -> None:
    pieces = in_pieces(LARGE)
    parsing = asyncio.create_task(parser.parse(pieces, CHAT, None))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    parsing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parsing
    assert pieces == in_pieces(LARGE)
    assert await parser.parse(pieces, CHAT, None) == parse(LARGE, CHAT, None)


async def test_a_client_that_leaves_while_the_child_ends_leaves_the_next_body_a_live_one(
    parser: BodyParser,
) -> None:
    parsing, child = await begin_endless_parsing(parser)
    has_died, may_end = threading.Event(), threading.Event()

    def hold_up() -> None:
        has_died.set()
        may_end.wait(10)

    parser._thread.submit(hold_up)
    child.kill()
    # Until the end of the child waits for its turn in the thread.
    await until(lambda: has_died.is_set() and bool(parser._thread._work_queue.qsize()))
    parsing.cancel()
    asyncio.get_running_loop().call_soon(may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await parsing
    assert await parser.parse([LARGE], CHAT, None) == parse(LARGE, CHAT, None)
