"""Asks an upstream for the names of its models: `GET /models`, which OpenAI, Anthropic, vLLM, Ollama and
llama-server have.
"""

import asyncio

import aiohttp
import msgspec

from chatapi.wire.upstream.http_api import UpstreamAPI

TIMEOUT_S = 10.0
MAX_BYTES = 4 << 20
MAX_NAMES = 1_000


class NotListedError(Exception):
    """The upstream lists no models; the text says why, in one line, to the operator who asked it."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    # Ollama without a model sends null.
    data: list[_Model] | None


async def model_names(api: UpstreamAPI, base_url: str, key: str, max_chars: int) -> list[str]:
    """Return the distinct names of at most `max_chars`, sorted, at most `MAX_NAMES`. Raises `NotListedError`.

    No redirect is followed: it could lead the key to another host.
    """
    session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            body = await _read(session, api, base_url, key)
    except TimeoutError:
        raise NotListedError(f"It did not answer within {TIMEOUT_S:.0f} seconds.") from None
    except (aiohttp.ClientError, UnicodeError):  # the last one: a bad host name
        raise NotListedError("There is no answer. Is it running, and can this server reach it?") from None
    finally:
        await session.close()
    try:
        found = msgspec.json.decode(body, type=_Models)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise NotListedError("Its answer is no list of models. Does the base URL end in /v1?") from None
    names = {row.id for row in found.data or () if 0 < len(row.id) <= max_chars and row.id.isprintable()}
    if not names:
        raise NotListedError("It lists no models.")
    return sorted(names, key=lambda name: (name.casefold(), name))[:MAX_NAMES]


async def _read(session: aiohttp.ClientSession, api: UpstreamAPI, base_url: str, key: str) -> bytes:
    async with session.get(
        f"{base_url.rstrip('/')}/models",
        params=api.list_parameters,
        headers=api.headers(key),
        allow_redirects=False,
    ) as response:
        if response.status != 200:
            raise NotListedError(_refusal(response.status, has_key=bool(key)))
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > MAX_BYTES:
                raise NotListedError(f"Its list is larger than {MAX_BYTES >> 20} MiB.")
        return bytes(body)


def _refusal(status: int, *, has_key: bool) -> str:
    if status in {401, 403}:
        wish = "It refuses the key" if has_key else "It wants a key"
        return f"{wish} ({status}). Enter the key in “API key”."
    if 300 <= status < 400:
        return f"It redirects ({status}), which is not followed. Enter the URL to which it leads."
    if status == 404:
        return "It has no list of models (404). Does the base URL end in /v1?"
    return f"It answers with the status {status}."
