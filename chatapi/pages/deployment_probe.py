"""One call of one token to a deployment, outside of all books: what an operator asks for to see whether it
works.

It goes to the address of the saved row and nowhere else. No generation, hold or ledger entry is made of it.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from chatapi.models import Deployment
from chatapi.wire.completion import Completion
from chatapi.wire.deltas import AnyDelta, Failed, Finished, Started, Usage
from chatapi.wire.generation_request import GenerationRequest, Messages
from chatapi.wire.messages import UserMessage
from chatapi.wire.upstream_errors import TIMED_OUT
from chatapi.worker.deployments import target_of
from chatapi.worker.engines import Call, EngineError, Target

TIMEOUT_S = 20.0
"""Of the whole call, whatever the deployment's own timeouts allow: somebody waits for a page."""
_REQUEST = GenerationRequest(model="test", prompt=Messages([UserMessage("Say yes.")]), stream=True, digest="")


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of the call. No text of the upstream's holds the key that it was sent."""

    status: int
    """What a client would have been told."""
    error: str
    """The error's code; empty: it works."""
    message: str
    text: str
    """The token: of the answer, or of its reasoning."""
    fingerprint: str
    usage: Usage | None
    """The tokens that the upstream counted, if it tells."""
    started_ms: float | None
    """Until the upstream's head: it accepts the request."""
    first_token_ms: float | None
    total_ms: float

    @property
    def outcome(self) -> str:
        """The status and the error's code."""
        return f"{self.status} {self.error}".strip()


def ask(row: Deployment) -> Finding:
    """Call the deployment of this row and wait for the end, at most `TIMEOUT_S`. Blocks: for threads without
    an event loop.
    """
    answer = asyncio.run(_ask(target_of(row)))
    failure = answer.completion.failure
    choice = answer.completion.choice(0)
    told = [
        (failure.code or failure.type) if failure else "",
        failure.message if failure else "",
        choice.text or choice.reasoning or choice.refusal or "",
        answer.completion.system_fingerprint or "",
    ]
    error, message, text, fingerprint = _without_key(told, key_of(row))
    status = failure.status if failure else 200
    usage, times = answer.completion.usage, (answer.started_ms, answer.first_token_ms, answer.total_ms)
    return Finding(status, error, message, text, fingerprint, usage, *times)


def key_of(row: Deployment) -> str:
    """The upstream's key in this process's environment; empty where none is set, or none is asked for."""
    return os.environ.get(row.api_key_env, "").strip() if row.api_key_env else ""


def _without_key(texts: Sequence[str], key: str) -> list[str]:
    return [text.replace(key, "(the key)") if key else text for text in texts]


class _Answer:
    """What has come so far, and when."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self.completion = Completion()
        self.started_ms: float | None = None
        self.first_token_ms: float | None = None
        self.total_ms = 0.0

    def add(self, delta: AnyDelta) -> None:
        """Note a delta, now."""
        self.completion.add(delta)
        self.total_ms = (time.monotonic() - self._started_at) * 1_000
        if isinstance(delta, Started):
            self.started_ms = self.total_ms
        elif self.first_token_ms is None and not isinstance(delta, Finished | Usage | Failed):
            self.first_token_ms = self.total_ms


async def _ask(target: Target) -> _Answer:
    # Imported when it is needed: the engines bring an HTTP client along, which no other page of the web
    # process uses.
    from chatapi.worker.services import ENGINES  # noqa: PLC0415

    answer, engine = _Answer(), ENGINES[target.engine]()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            aclosing(engine.stream(Call("test", _REQUEST, target, 1))) as batches,
        ):
            async for batch in batches:
                for delta in batch:
                    answer.add(delta)
    except EngineError as error:
        answer.add(error.failure)
    except TimeoutError:
        answer.add(TIMED_OUT)
    finally:
        await engine.close()
    return answer
