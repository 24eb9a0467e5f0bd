"""A pass-through written by hand with Starlette and httpx, which relays raw bytes; no keys, no limits, no
accounting.

    CHATAPI_BENCH_UPSTREAM_URL=http://127.0.0.1:27100/v1 python -m uvicorn bench.passthrough_starlette:app
    --no-access-log

One uvicorn process, with uvloop and httptools.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open one client, with its pool of connections, for the life of the process."""
    limits = httpx.Limits(max_connections=4096, max_keepalive_connections=4096)
    async with httpx.AsyncClient(
        base_url=os.environ["CHATAPI_BENCH_UPSTREAM_URL"], limits=limits, timeout=120
    ) as client:
        app.state.client = client
        yield


async def chat_completions(request: Request) -> Response:
    """Send the body to the upstream and relay its answer (the pattern of httpx' page on async streaming)."""
    client: httpx.AsyncClient = request.app.state.client
    headers = {"content-type": "application/json"}
    forwarded = client.build_request(
        "POST", "chat/completions", content=await request.body(), headers=headers
    )
    answer = await client.send(forwarded, stream=True)
    media_type = answer.headers["content-type"]
    if media_type == "application/json":
        return Response(await answer.aread(), answer.status_code, media_type=media_type)
    return StreamingResponse(
        answer.aiter_raw(),
        answer.status_code,
        media_type=media_type,
        background=BackgroundTask(answer.aclose),
    )


app = Starlette(routes=[Route("/v1/chat/completions", chat_completions, methods=["POST"])], lifespan=lifespan)
