"""The embedded engine: deterministic, scriptable, needs no network. What client teams integrate against.

`sandbox_script` reads what was asked for, `sandbox_answer` says it without a clock, and this module plays it
in time. docs/sandbox.md is the manual.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import islice
from typing import NoReturn

from chatapi.wire.deltas import AnyDelta, Failed, Started, Usage
from chatapi.wire.upstream_errors import TIMED_OUT
from chatapi.worker.engines import Call, EngineError, Timeouts
from chatapi.worker.engines.sandbox_answer import Answer, UnusableSchemaError, scripting_text
from chatapi.worker.engines.sandbox_script import MarkerError, Script, read
from chatapi.worker.runs import heavy_work

FINGERPRINT = "fp_sandbox"
BATCH_DELTAS = 64
"""About so many go out at once when there is no delay, and then the loop may turn."""


class SandboxEngine:
    """Plays scripted answers; one instance serves any number of calls.

    No failure is retryable: a failure that one client asked for must not count against the deployment that
    all share.
    """

    async def stream(self, call: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        """The call's batches of deltas; raises `EngineError` for a bad marker, and for the failures a script
        asks for.
        """
        # A prompt may be megabytes long, and a small schema may take long to fill.
        script, answer = _answer_to(call) if _is_light(call) else await heavy_work.aside(_answer_to, call)
        prompt_tokens = await heavy_work.count_prompt(call.request, call.request_bytes)
        if (
            call.max_prompt_tokens is not None
        ):  # it refuses no prompt, but a model would have seen no more of it
            prompt_tokens = min(prompt_tokens, call.max_prompt_tokens)
        playing = _Playing(script, call.target.timeouts, is_light=_is_light(call))
        await playing.first_delay()
        yield [Started(FINGERPRINT)]
        async for batch in playing.batches(answer):
            yield batch
        if script.breaks_after is not None:
            await playing.break_off()
        usage = Usage(
            prompt_tokens, answer.completion_tokens, cached_tokens=0, reasoning_tokens=answer.reasoning_tokens
        )
        yield [*answer.finished, usage]

    async def close(self) -> None:
        """Nothing to give back."""


class _Playing:
    """One answer's place in time: token n of each choice is due at a fixed moment, however late the ones
    before were.
    """

    def __init__(self, script: Script, timeouts: Timeouts, *, is_light: bool) -> None:
        """`is_light`: what the answer says is made in little time."""
        self._script = script
        self._timeouts = timeouts
        self._is_light = is_light
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._round = 0

    async def first_delay(self) -> None:
        """Wait as the script asks, at most as long as an upstream may take; then fail, if that is to happen
        here.
        """
        if self._script.first_delay_ms > self._timeouts.first_delta_ms:
            await self._stall(self._timeouts.first_delta_ms)
        await self._until(self._script.first_delay_ms)
        failure = self._script.failure
        if failure is not None and self._script.after is None:
            raise EngineError(failure)

    async def batches(self, answer: Answer) -> AsyncGenerator[Sequence[AnyDelta], None]:
        """The answer, up to where the script breaks it off: a round at a time when there is a delay, else
        many together.
        """
        rounds = islice(answer.rounds(), self._script.breaks_after)
        batch_rounds = 1 if self._script.delay_ms else max(1, BATCH_DELTAS // answer.choices_count)
        while batch := await self._next(rounds, batch_rounds):
            await self._until(self._script.first_delay_ms + self._round * self._script.delay_ms)
            self._round += len(batch)
            yield [delta for deltas in batch for delta in deltas]

    async def _next(self, rounds: Iterator[list[AnyDelta]], count: int) -> list[list[AnyDelta]]:
        return (
            list(islice(rounds, count))
            if self._is_light
            else await heavy_work.aside(list, islice(rounds, count))
        )

    async def break_off(self) -> NoReturn:
        """End as the script asks: by a stall that runs into the deployment's timeout, or by an error at once."""
        failure = self._script.failure
        if failure is None or self._script.stalls:
            await self._stall(
                self._timeouts.between_deltas_ms if self._round else self._timeouts.first_delta_ms
            )
        raise EngineError(failure)

    async def _until(self, due_ms: int) -> None:
        total_ms = self._timeouts.total_ms
        await asyncio.sleep(max(0.0, self._started_at + min(due_ms, total_ms) / 1000 - self._loop.time()))
        if due_ms > total_ms:
            raise EngineError(TIMED_OUT)

    async def _stall(self, limit_ms: int) -> NoReturn:
        await asyncio.sleep(limit_ms / 1000)
        raise EngineError(TIMED_OUT)


def _answer_to(call: Call) -> tuple[Script, Answer]:
    """Who asks for what can't be understood gets a 400 that says so, before anything else happens."""
    request = call.request
    try:
        script = read(call.target.upstream_model or request.model, scripting_text(request))
        return script, Answer(request, script, call.max_output_tokens)
    except MarkerError as error:
        failure = Failed(
            f"{error}.", "invalid_request_error", "invalid_sandbox_marker", request.prompt.param, status=400
        )
    except UnusableSchemaError as error:
        failure = Failed(str(error), "invalid_request_error", "unsupported_schema", error.param, status=400)
    raise EngineError(failure)


def _is_light(call: Call) -> bool:
    """Whether the request is small and asks for no instance of a schema: answering it takes little time."""
    request = call.request
    if call.request_bytes > heavy_work.LIGHT_BYTES:
        return False
    return not (request.response_format or request.tools or request.functions)
