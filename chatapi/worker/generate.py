"""Runs one generation: claim, deployments in order, stream, settle, and only then the end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import count
from uuid import UUID

from django.conf import settings
from redis.exceptions import RedisError

from chatapi.concurrency import MAX_AGE_S, shield_until_done
from chatapi.delta_stream import Cancellation, Job
from chatapi.wire import requests
from chatapi.wire.deltas import Failed
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.deployments import SANDBOX, Route, able
from chatapi.worker.engines import Call, EngineError
from chatapi.worker.runs import heavy_work, run_usage
from chatapi.worker.runs.run import SHUTTING_DOWN, STREAM_LOST, Run
from chatapi.worker.runs.run_usage import End, Ending
from chatapi.worker.services import Services
from usage.books import ledger
from usage.database.group_commit import Result
from usage.errors import AlreadyResolved, DatabaseUnavailable
from usage.failpoints import failpoint
from usage.models import Generation, State

log = logging.getLogger(__name__)

JOB_LOST = Failed(
    "The request was lost before it could run. Nothing was charged; send it again.",
    code="request_lost",
    status=503,
)
NO_DEPLOYMENT = Failed("No deployment serves this model right now.", code="no_deployment", status=503)
DATABASE_AWAY = Failed(
    "The service can't reach its database right now. Nothing was charged; send the request again.",
    code="service_unavailable",
    status=503,
    retry_after_ms=1_000,
)
INTERNAL = Failed("The server had an error while processing your request.", code="internal_error", status=500)

START_UNITS = 64
"""What a run costs before its first delta, in deltas (`fair_turns.py`)."""
CLAIM_RETRY_S = (0.1, 0.5, 1, 2)
SETTLE_RETRY_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)
"""Waits between attempts while the database is away; after the last one the reaper closes the generation."""


async def generate(services: Services, generation_id: UUID) -> None:
    """Run the generation to its settled end, unless someone else has."""
    failpoint("claim.before")
    with services.awaiting(generation_id) as heard:
        (run, cancelled), must_end = await shield_until_done(_claimed_run(services, generation_id))
        failpoint("claim.after")
        services.running[run.id] = run
        heavy_work.party.set(run.organization_id)
    if must_end:
        run.stop(End(Ending.FAILED, SHUTTING_DOWN))
    for why in filter(None, (cancelled, *heard)):
        run.cancel(why)
    try:
        await _run(services, run)
    finally:
        del services.running[run.id]


async def _claimed_run(services: Services, generation_id: UUID) -> tuple[Run, Cancellation | None]:
    """Claims the generation; returns its run, which alone refers to the request, and why it is cancelled
    already.
    """
    (job, cancelled), claimed = await asyncio.gather(
        _job(services, generation_id), _claim(services, generation_id)
    )
    if job is None:
        return Run(claimed, ""), cancelled
    return Run(claimed, job.inbox, runs_on=job.runs_on, content=job.request), cancelled


async def _claim(services: Services, generation_id: UUID) -> ledger.Claimed:
    """Claim it, or find that we have: a commit whose answer was lost looks like somebody else's when it is
    tried again.
    """
    claim = ledger.Claim(generation_id, services.name, settings.LEASE_MS)
    attempts = count()

    async def attempt() -> ledger.Claimed:
        next(attempts)
        return await services.commits.write(ledger.claim, claim)

    try:
        return await _patiently(attempt, CLAIM_RETRY_S)
    except AlreadyResolved:
        is_first = next(attempts) == 1
        ours = (
            None if is_first else await services.commits.read(ledger.claimed_by, services.name, generation_id)
        )
        if ours is None:
            raise
        return ours


async def _job(services: Services, generation_id: UUID) -> tuple[Job | None, Cancellation | None]:
    """The job and whether it is cancelled; none when Redis, that has just given us the message, is away."""
    try:
        return await services.jobs(generation_id)
    except (RedisError, OSError) as error:
        log.warning("the job of %s can't be had: %r", generation_id.hex, error)
        return None, None


async def _run(services: Services, run: Run) -> None:
    request = None
    try:
        await services.turns.take(run.claimed.organization_id, START_UNITS)
        if run.content is not None:
            request = await _request(run)
            run.tally.expect_echo(request)
            run.context = request.context
        end = await _produce(services, run, request)
    except asyncio.CancelledError:
        # The process must end. What was generated is settled all the same; the pool waits for it, and cancels
        # only once.
        end = run.ended(End(Ending.FAILED, SHUTTING_DOWN))
    except DatabaseUnavailable as error:
        log.warning("%s can't run: %r", run.id.hex, error)
        end = run.ended(End(Ending.FAILED, DATABASE_AWAY))
    except Exception:
        log.exception("%s failed", run.id.hex)
        end = run.ended(End(Ending.FAILED, INTERNAL))
    await shield_until_done(_finish(services, run, request, end))


async def _request(run: Run) -> GenerationRequest:
    content = run.take_content()
    if run.request_bytes <= heavy_work.LIGHT_BYTES:
        return requests.from_bytes(content)
    return await heavy_work.aside(requests.from_bytes, content)


async def _produce(services: Services, run: Run, request: GenerationRequest | None) -> End:
    """Try the model's deployments in order until one has begun to answer; stream that one to its end."""
    if request is None:
        return End(Ending.FAILED, JOB_LOST)
    end = End(Ending.FAILED, NO_DEPLOYMENT)
    for route in services.health.in_order(await _routes(services, run.claimed, request)):
        # Whether anyone still wants the answer is asked before every attempt.
        if stopped := run.begin_on(route.target.name, route.on_disconnect):
            end = stopped
            break
        end, may_retry = await _attempt(services, run, request, route)
        if not may_retry:
            break
    return run.ended(end)


async def _routes(services: Services, claimed: ledger.Claimed, request: GenerationRequest) -> list[Route]:
    """Those that may receive the request. There are some, or it was not admitted: if we know of none, our
    reading is too old.
    """
    if claimed.is_test:
        return [SANDBOX]
    for max_age_s in (MAX_AGE_S, 0):
        known = await _patiently(partial(services.routes.get, max_age_s), CLAIM_RETRY_S)
        if routes := able(known.get(claimed.model, []), request):
            return routes
    return []


async def _attempt(
    services: Services, run: Run, request: GenerationRequest, route: Route
) -> tuple[End, bool]:
    """How the stream of one deployment ended, and whether another one may be tried."""
    try:
        await _stream(services, run, request, route)
    except EngineError as error:
        end = End(Ending.FAILED, error.failure)
        run.end_attempt(end.error_code)
        if error.is_retryable:
            services.health.failed(route.target)
            log.warning(
                "%s: deployment %s of %s failed: %s",
                run.id.hex,
                route.target.name,
                run.claimed.model,
                end.error_code,
            )
        return end, error.is_retryable and not run.has_published
    except Exception as error:
        if isinstance(error, TimeoutError) and run.stopped is not None:
            return run.stopped, False
        # A bug; but one that this deployment brings about.
        run.end_attempt(End(Ending.FAILED, INTERNAL).error_code)
        raise
    return End(Ending.COMPLETED), False


async def _stream(services: Services, run: Run, request: GenerationRequest, route: Route) -> None:
    """Pass the engine's deltas on; raises `EngineError`, or TimeoutError when the run is stopped."""
    claimed = run.claimed
    call = Call(
        run.id.hex,
        request,
        route.target,
        claimed.max_output_tokens,
        run.request_bytes,
        claimed.max_prompt_tokens,
    )
    # Closed explicitly: a generator that is merely left keeps its upstream until the garbage collector finds
    # it.
    async with run.scope(), aclosing(services.engines[route.target.engine].stream(call)) as batches:
        async for batch in batches:
            if run.has_lost_stream:
                return
            if not services.turns.try_take(len(batch)):
                await services.turns.wait(run.organization_id, len(batch))
            is_light = heavy_work.is_light(run.tally, batch)
            passing = run.tally.add(batch) if is_light else await heavy_work.tallied(run.tally, batch)
            run.publish(services.publisher, passing)
            if services.publisher.is_behind(run):
                await services.publisher.caught_up(run)


async def _finish(services: Services, run: Run, request: GenerationRequest | None, end: End) -> None:
    """Settle, then publish the end: what a client is told is a row that exists."""
    if end.ending is Ending.FENCED_OFF:
        return
    # First all content, then the charge for it: nobody is charged for what no log holds.
    await services.publisher.flushed(run)
    if run.has_lost_stream and end.failure is None:
        # However well it ended: a part of it is missing.
        end = replace(end, ending=Ending.FAILED, failure=STREAM_LOST)
    settlement = await _settlement(run, request, end)
    failpoint("settle.before_tx")
    try:
        await _settle(services, settlement)
    except (AlreadyResolved, DatabaseUnavailable) as error:
        log.warning("%s is left to the reaper: %r", run.id.hex, error)
        return
    failpoint("settle.after_commit")
    run.publish(
        services.publisher, run_usage.terminal(end, run.tally, settlement.tokens, run.claimed.choices_count)
    )


async def _settle(services: Services, settlement: ledger.Settlement) -> None:
    """Settle, or find that we have: a commit whose answer was lost looks like somebody else's when it is
    tried again.
    """
    try:
        await _patiently(lambda: services.commits.write(ledger.settle, settlement), SETTLE_RETRY_S)
    except AlreadyResolved:
        ours = Generation.objects.filter(pk=settlement.id, fence=settlement.fence, state=State.SETTLED)
        if not await services.commits.read(ours.exists):
            raise


async def _settlement(run: Run, request: GenerationRequest | None, end: End) -> ledger.Settlement:
    if run.tally.usage is not None and run_usage.is_plausible(run.claimed, run.tally.usage):
        return run_usage.settlement(run.claimed, request, run.tally, end)
    await heavy_work.count_all(run.tally)
    is_charged = end.ending is Ending.COMPLETED or run.tally.completion_tokens
    prompt_tokens = (
        await heavy_work.count_prompt(request, run.request_bytes) if request is not None and is_charged else 0
    )
    return run_usage.settlement(run.claimed, request, run.tally, end, prompt_tokens)


async def _patiently(call: Callable[[], Awaitable[Result]], waits_s: Sequence[float]) -> Result:
    """Call, again after each wait while the database is away; raises `DatabaseUnavailable` in the end, or
    what the books say.
    """
    for wait_s in waits_s:
        try:
            return await call()
        except DatabaseUnavailable:
            await asyncio.sleep(wait_s)
    return await call()
