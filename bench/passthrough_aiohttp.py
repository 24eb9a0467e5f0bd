"""A pass-through written by hand with aiohttp, which relays raw bytes or parses every event; no keys, no
limits, no accounting.

    python -m bench.passthrough_aiohttp --port 27102 --upstream-url http://127.0.0.1:27100/v1 [--parse]

`--parse` decodes, counts and encodes every event again, which is the least that accounting needs.
"""

import argparse
import json
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

CLIENT: web.AppKey[aiohttp.ClientSession] = web.AppKey("client", aiohttp.ClientSession)
UPSTREAM_URL: web.AppKey[str] = web.AppKey("upstream_url", str)
MUST_PARSE: web.AppKey[bool] = web.AppKey("must_parse", bool)


async def open_client(app: web.Application) -> AsyncIterator[None]:
    """Open one client, with its pool of connections, for the life of the process."""
    connector = aiohttp.TCPConnector(limit=4096)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(120)) as client:
        app[CLIENT] = client
        yield


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Send the body to the upstream and relay its answer."""
    url = request.app[UPSTREAM_URL] + "/chat/completions"
    headers = {"content-type": "application/json"}
    async with request.app[CLIENT].post(url, data=await request.read(), headers=headers) as answer:
        if answer.content_type != "text/event-stream":
            return web.Response(
                body=await answer.read(), status=answer.status, content_type=answer.content_type
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events = parsed_events(answer.content) if request.app[MUST_PARSE] else answer.content.iter_any()
        async for data in events:
            await response.write(data)
        await response.write_eof()
        return response


async def parsed_events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the same events, each decoded, counted and encoded again."""
    tokens = 0
    async for line in content:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            yield b"data: [DONE]\n\n"
        elif data:
            chunk = json.loads(data)
            tokens += sum(bool(choice["delta"].get("content")) for choice in chunk["choices"])
            yield b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="A pass-through written with aiohttp, on 127.0.0.1.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream-url", required=True)
    parser.add_argument("--parse", action="store_true")
    arguments = parser.parse_args()
    app = web.Application(client_max_size=1 << 26)
    app[UPSTREAM_URL], app[MUST_PARSE] = arguments.upstream_url, arguments.parse
    app.cleanup_ctx.append(open_client)
    app.router.add_post("/v1/chat/completions", chat_completions)
    web.run_app(
        app,
        host="127.0.0.1",
        port=arguments.port,
        access_log=None,
        print=None,
        backlog=4096,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
