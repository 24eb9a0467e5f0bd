"""The embedded engine: deterministic, scriptable, without a network. docs/sandbox.md is the manual.

1. `script.py` reads the model's name and the markers in the prompt.
2. `request.py` reads the request, `answer.py` makes the answer without a clock.
3. This module plays the answer in time.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import islice
from typing import NoReturn, assert_never

from chatapi.wire.deltas import AnyDelta, Failed, Started, Usage
from chatapi.wire.prompts import Inputs, Messages, Texts
from chatapi.wire.upstream.upstream_errors import TIMED_OUT
from chatapi.worker.engines import Call, EngineError, Timeouts
from chatapi.worker.engines.sandbox.answer import Answer
from chatapi.worker.engines.sandbox.embeddings import DimensionsError, Embeddings
from chatapi.worker.engines.sandbox.pace import Pace
from chatapi.worker.engines.sandbox.request import answer_spec, may_have_schema, scripting_text
from chatapi.worker.engines.sandbox.schema import SchemaError
from chatapi.worker.engines.sandbox.script import MarkerError, Script, read
from chatapi.worker.runs import heavy_work

FINGERPRINT = "fp_sandbox"
# About this many deltas are sent at once if there is no delay; then other tasks run.
BATCH_DELTAS = 64
# The most characters of a path into the client's JSON schema that an error names.
MAX_PARAM_CHARS = 200


class SandboxEngine:
    """Plays scripted answers; one instance serves any number of calls."""

    def __init__(self) -> None:
        self._pace = Pace()

    async def stream(self, call: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        """Yield the call's batches of deltas.

        Raises `EngineError` for a marker or schema that is not understood, and for the script's own failure.
        """
        is_light = _is_light(call)
        # A prompt may be megabytes long, and a small schema may take long to fill.
        script, answer = _answer_to(call) if is_light else await heavy_work.in_thread(_answer_to, call)
        prompt_tokens = await heavy_work.count_prompt(call.request, call.request_bytes)
        if call.max_prompt_tokens is not None:
            # The sandbox refuses no prompt, but a model would have seen no more of it.
            prompt_tokens = min(prompt_tokens, call.max_prompt_tokens)
        playing = _Playing(script, call.target.timeouts, self._pace, is_light=is_light)
        await playing.first_delay()
        yield [Started(FINGERPRINT)]
        async for batch in playing.batches(answer):
            yield batch
        if script.breaks_after is not None:
            await playing.break_off()
        yield [*answer.finished, _usage(script, answer, prompt_tokens)]

    async def close(self) -> None:
        """Do nothing: there are no connections."""


class _Playing:
    """One answer in time: token n of each choice is due at a fixed moment, even if others were late."""

    def __init__(self, script: Script, timeouts: Timeouts, pace: Pace, *, is_light: bool) -> None:
        """`is_light`: the answer's deltas are made in little time."""
        self._script = script
        self._timeouts = timeouts
        self._pace = pace
        self._is_light = is_light
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._round = 0

    async def first_delay(self) -> None:
        """Wait as the script says, at most until the timeout; raise the failure that is due then, if any."""
        if self._script.first_delay_ms > self._timeouts.first_delta_ms:
            await self._stall(self._timeouts.first_delta_ms)
        await self._until(self._script.first_delay_ms)
        failure = self._script.failure
        if failure is not None and self._script.after is None:
            # Not retryable: a failure that one client asked for must not count against the deployment that
            # all share.
            raise EngineError(failure)

    async def batches(self, answer: Answer | Embeddings) -> AsyncGenerator[Sequence[AnyDelta], None]:
        """Yield the answer up to where the script breaks it off, a round at a time if there is a delay."""
        rounds = islice(answer.rounds(), self._script.breaks_after)
        batch_rounds = 1 if self._script.delay_ms else max(1, BATCH_DELTAS // answer.choices_count)
        while batch := await self._next(rounds, batch_rounds):
            await self._until(self._script.first_delay_ms + self._round * self._script.delay_ms)
            self._round += len(batch)
            deltas = [delta for one_of_each in batch for delta in one_of_each]
            if isinstance(answer, Answer):  # vectors have bounds of their own, and Redis drops them
                await self._keep_pace(deltas)
            yield deltas

    async def _keep_pace(self, deltas: Sequence[AnyDelta]) -> None:
        organization_id = heavy_work.party.get()
        wait_s = self._pace.wait_s(organization_id)
        if wait_s > 0:
            await self._pause(wait_s * 1_000)
        self._pace.count(organization_id, deltas)

    async def _next(self, rounds: Iterator[list[AnyDelta]], count: int) -> list[list[AnyDelta]]:
        taken = islice(rounds, count)
        return list(taken) if self._is_light else await heavy_work.in_thread(list, taken)

    async def break_off(self) -> NoReturn:
        """Raise the script's failure, after the deployment's timeout if the script stalls."""
        failure = self._script.failure
        if failure is None or self._script.stalls:
            timeouts = self._timeouts
            await self._stall(timeouts.between_deltas_ms if self._round else timeouts.first_delta_ms)
        raise EngineError(failure)

    async def _until(self, due_ms: int) -> None:
        total_ms = self._timeouts.total_ms
        await asyncio.sleep(max(0.0, self._started_at + min(due_ms, total_ms) / 1000 - self._loop.time()))
        if due_ms > total_ms:
            raise EngineError(TIMED_OUT)

    async def _pause(self, wait_ms: float) -> None:
        passed_ms = (self._loop.time() - self._started_at) * 1_000
        await self._until(math.ceil(passed_ms + wait_ms))

    async def _stall(self, limit_ms: int) -> NoReturn:
        await self._pause(limit_ms)
        raise EngineError(TIMED_OUT)


def _answer_to(call: Call) -> tuple[Script, Answer | Embeddings]:
    """Return the script and the answer; raise `EngineError` (400) for a wrong marker, schema or dimension."""
    request = call.request
    try:
        script = read(call.target.upstream_model or request.model, scripting_text(request))
        match request.prompt:
            case Inputs():
                return script, Embeddings(request.prompt)
            case Messages() | Texts():
                return script, Answer(answer_spec(request, script), script, call.max_output_tokens)
            case unknown:
                assert_never(unknown)
    except MarkerError as error:
        code, message, param = "invalid_sandbox_marker", f"{error}.", request.prompt.param
    except SchemaError as error:
        code, message, param = "unsupported_schema", f"The sandbox can't answer: {error}.", error.path
    except DimensionsError as error:
        code, message, param = "invalid_value", f"{error}.", "dimensions"
    raise EngineError(Failed(message, "invalid_request_error", code, param[:MAX_PARAM_CHARS], status=400))


def _usage(script: Script, answer: Answer | Embeddings, prompt_tokens: int) -> Usage:
    """Return the usage with the kinds of input that the script names, as far as the prompt has the tokens."""
    cached = min(script.cached_tokens, prompt_tokens)
    written, written_1h = script.cache_write_tokens, script.cache_write_1h_tokens
    if written is None:
        written = written_1h
    if written is not None:
        written = min(written, prompt_tokens - cached)
        written_1h = None if written_1h is None else min(written_1h, written)
    return Usage(
        prompt_tokens,
        answer.completion_tokens,
        cached,
        answer.reasoning_tokens,
        cache_write_tokens=written,
        cache_write_1h_tokens=written_1h,
    )


def _is_light(call: Call) -> bool:
    """Return whether answering takes little time: the request is small, and needs text and no schema."""
    is_text = not isinstance(call.request.prompt, Inputs) and not may_have_schema(call.request)
    return is_text and call.request_bytes <= heavy_work.LIGHT_BYTES
