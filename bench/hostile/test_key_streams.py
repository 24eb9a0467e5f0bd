"""Attacks by a free test key with the number and length of answers: streams, tickets, embeddings."""

import asyncio
import json

from bench.hostile.raw_client import Attacker
from bench.hostile.registry import attack
from bench.hostile.requests import EMBEDDINGS, bearer, chat, messages, request
from bench.hostile.test_key import GENERATION_ID, LONG_STREAM, PACED_STREAM, TEST_KEY, three_at_once

# ---- streams and followers


@attack(TEST_KEY)
async def streams_of_128_choices(attacker: Attacker) -> None:
    """Three streams of 128 choices, as fast as they go."""
    payload = chat(
        attacker.keys.test, n=128, stream=True, messages=messages("hello [sandbox tokens=2000 delay_ms=1]")
    )
    await attacker.hold(3, payload)


@attack(TEST_KEY)
async def streams_with_logprobs(attacker: Attacker) -> None:
    """Ten long streams with the 20 likeliest tokens beside each."""
    payload = chat(
        attacker.keys.test, stream=True, logprobs=True, top_logprobs=20, messages=messages(LONG_STREAM)
    )
    await attacker.hold(10, payload)


@attack(TEST_KEY)
async def whole_answers_of_128_choices(attacker: Attacker) -> None:
    """Answers of 128 choices of 5,000 tokens that are not streamed."""
    await three_at_once(
        attacker, chat(attacker.keys.test, n=128, messages=messages("hello [sandbox tokens=5000]"))
    )


@attack(TEST_KEY)
async def readers_that_never_read(attacker: Attacker) -> None:
    """300 long streams that nobody reads."""
    payload = chat(attacker.keys.test, stream=True, messages=messages(LONG_STREAM))
    await attacker.hold(attacker.share(300), payload, receive_buffer_bytes=4096)


@attack(TEST_KEY)
async def slow_readers(attacker: Attacker) -> None:
    """200 long streams that are read once a second, into a small buffer."""
    payload = chat(attacker.keys.test, stream=True, messages=messages(LONG_STREAM))

    async def one() -> None:
        connection = await attacker.connect(receive_buffer_bytes=2048)
        if connection is None:
            return
        try:
            await connection.send(payload)
            while connection.is_open:
                connection.transport.pause_reading()
                await asyncio.sleep(1)
                connection.transport.resume_reading()
                await asyncio.sleep(0)
        finally:
            connection.close()

    await asyncio.gather(*(one() for _ in range(attacker.share(200))))


@attack(TEST_KEY)
async def streams_500_at_once(attacker: Attacker) -> None:
    """500 paced streams at the same time."""
    await attacker.hold(
        attacker.share(500), chat(attacker.keys.test, stream=True, messages=messages(PACED_STREAM))
    )


@attack(TEST_KEY)
async def streams_as_fast_as_they_go(attacker: Attacker) -> None:
    """50 streams of 100,000 tokens without a pause."""
    await attacker.hold(
        attacker.share(50), chat(attacker.keys.test, stream=True, messages=messages(LONG_STREAM))
    )


@attack(TEST_KEY)
async def connect_and_abort(attacker: Attacker) -> None:
    """Streams whose clients leave at once, 50 at a time."""
    payload = chat(attacker.keys.test, stream=True, messages=messages(PACED_STREAM))

    async def one() -> None:
        while True:
            await attacker.send_once(payload, waits=False)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(50)))


@attack(TEST_KEY)
async def small_requests(attacker: Attacker) -> None:
    """Small valid requests over 100 kept connections, as fast as they are answered."""
    await attacker.flood(
        chat(attacker.keys.test, messages=messages("hello [sandbox tokens=1]")), connections=100
    )


@attack(TEST_KEY)
async def small_requests_over_limit(attacker: Attacker) -> None:
    """Small requests by a key that is over its rate limit, over 100 kept connections."""
    await attacker.flood(chat(attacker.keys.test_over_limit), connections=100)


@attack(TEST_KEY)
async def pipelined_requests(attacker: Attacker) -> None:
    """2,000 requests in a row over one connection, and four such connections."""
    payload = chat(attacker.keys.test, messages=messages("hello [sandbox tokens=1]"))
    await attacker.hold(4, payload * 2_000)


@attack(TEST_KEY)
async def tickets(attacker: Attacker) -> None:
    """Tickets of 1 MB that nobody uses, over 10 kept connections."""
    payload = chat(
        attacker.keys.test, path="/v1/chat/completions/tickets", messages=messages("word " * 200_000)
    )
    await attacker.flood(payload, connections=10)


@attack(TEST_KEY)
async def small_tickets(attacker: Attacker) -> None:
    """Small tickets that nobody uses, over 30 kept connections."""
    await attacker.flood(chat(attacker.keys.test, path="/v1/chat/completions/tickets"), connections=30)


@attack(TEST_KEY)
async def idempotency_keys(attacker: Attacker) -> None:
    """Requests, each with an Idempotency-Key of its own, over 50 connections."""

    def payload(number: int) -> bytes:
        return chat(
            attacker.keys.test,
            extra={"Idempotency-Key": f"{attacker.address}-{number}"},
            messages=messages("hello [sandbox tokens=1]"),
        )

    await attacker.each((payload(number) for number in range(100_000)), connections=50)


@attack(TEST_KEY)
async def one_idempotency_key(attacker: Attacker) -> None:
    """One Idempotency-Key over 300 connections, which attach to one stream."""
    extra = {"Idempotency-Key": f"{attacker.address}-one"}
    await attacker.hold(
        attacker.share(300),
        chat(attacker.keys.test, extra=extra, stream=True, messages=messages(PACED_STREAM)),
    )


@attack(TEST_KEY)
async def respond_async(attacker: Attacker) -> None:
    """Long requests with `Prefer: respond-async`, over 30 kept connections."""
    extra = {"Prefer": "respond-async"}
    await attacker.flood(
        chat(attacker.keys.test, extra=extra, stream=True, messages=messages(PACED_STREAM)), connections=30
    )


async def _begun(attacker: Attacker, text: str) -> str:
    """Begin a stream, leave it, and return its id; empty if it was refused."""
    payload = chat(
        attacker.keys.test, extra={"Prefer": "respond-async"}, stream=True, messages=messages(text)
    )
    async with attacker.connected() as connection:
        if connection is None or not await connection.send(payload) or not await connection.status():
            return ""
        found = GENERATION_ID.search(connection.head)
    return found[1].decode() if found else ""


@attack(TEST_KEY)
async def resume_flood(attacker: Attacker) -> None:
    """A long finished stream, read again from its beginning over 300 connections."""
    generation_id = await _begun(attacker, "hello [sandbox tokens=16000]")
    await asyncio.sleep(2)
    payload = request("GET", f"/v1/generations/{generation_id}/stream", bearer(attacker.keys.test))
    await attacker.hold(attacker.share(300), payload)


@attack(TEST_KEY)
async def resume_unread(attacker: Attacker) -> None:
    """A long running stream, followed from its beginning by 300 clients that never read."""
    generation_id = await _begun(attacker, LONG_STREAM)
    payload = request("GET", f"/v1/generations/{generation_id}/stream", bearer(attacker.keys.test))
    await attacker.hold(attacker.share(300), payload, receive_buffer_bytes=4096)


@attack(TEST_KEY)
async def cancel_flood(attacker: Attacker) -> None:
    """A generation that runs, cancelled again and again, and ones that do not exist, over 40 kept
    connections.
    """
    generation_id = await _begun(attacker, PACED_STREAM)
    ids = (generation_id, "chatcmpl-" + "0" * 32)
    payloads = [
        request("POST", f"/v1/generations/{each}/cancel", bearer(attacker.keys.test), b"") for each in ids
    ]
    await asyncio.gather(*(attacker.flood(payload, connections=20) for payload in payloads))


@attack(TEST_KEY)
async def receipts(attacker: Attacker) -> None:
    """Receipts, models and the key's own page, over 30 kept connections."""
    paths = ("/v1/models", "/v1/key", "/v1/generations/chatcmpl-" + "0" * 32)
    payloads = [request("GET", path, bearer(attacker.keys.test)) for path in paths]
    await asyncio.gather(*(attacker.flood(payload, connections=10) for payload in payloads))


# ---- embeddings


def embeddings(key: str) -> bytes:
    """Return a small request for 12 MiB of vectors, which are up to 70 MiB as JSON."""
    inputs = [str(number) for number in range(2_048)]
    body = json.dumps({"model": "sandbox-embedding", "input": inputs}).encode()
    return request("POST", EMBEDDINGS, bearer(key), body)


@attack(TEST_KEY)
async def embeddings_of_many_inputs(attacker: Attacker) -> None:
    """As many embeddings as one request may ask for, three connections."""
    await three_at_once(attacker, embeddings(attacker.keys.test))


@attack(TEST_KEY)
async def embeddings_unread(attacker: Attacker) -> None:
    """The same by ten clients that never read."""
    payload = embeddings(attacker.keys.test)
    await attacker.hold(attacker.share(10), payload, receive_buffer_bytes=4096)
