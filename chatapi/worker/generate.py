"""Runs one generation.

1. Claim its row, and read its job from Redis.
2. Ask the model's deployments in order until one begins to answer, and publish its deltas.
3. Wait until all content is published, and commit the settlement.
4. Publish the terminal delta: a client never sees an end that the books do not have.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from uuid import UUID

import msgspec
from django.conf import settings
from redis.exceptions import RedisError

from chatapi import process_metrics
from chatapi.concurrency import MAX_AGE_S, retry, shield_until_done
from chatapi.delta_stream import Cancellation, Job
from chatapi.end_log import log_end
from chatapi.wire import requests
from chatapi.wire.deltas import Failed, Usage
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.deployments import SANDBOX, Route, able
from chatapi.worker.engines import Call, EngineError
from chatapi.worker.runs import heavy_work, run_usage
from chatapi.worker.runs.run import SHUTTING_DOWN, STREAM_LOST, Run
from chatapi.worker.runs.run_usage import End, Ending
from chatapi.worker.services import Services
from usage.books import ledger
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

# The cost of starting a run, in deltas (`fair_turns.py`).
START_UNITS = 64
CLAIM_RETRY_S = (0.1, 0.5, 1, 2)
# Waits between attempts while the database is away; after the last one the reaper closes the generation.
SETTLE_RETRY_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)


async def generate(services: Services, generation_id: UUID) -> None:
    """Run the generation until it is settled. Raises `AlreadyResolved` if another process has claimed it."""
    failpoint("claim.before")
    with services.awaiting(generation_id) as cancellations:
        (run, cancelled), must_end = await shield_until_done(_claimed_run(services, generation_id))
        failpoint("claim.after")
        services.running[run.id] = run
        heavy_work.party.set(run.organization_id)
    if must_end:
        run.stop(End(Ending.FAILED, SHUTTING_DOWN))
    for why in filter(None, (cancelled, *cancellations)):
        run.cancel(why)
    try:
        await _run(services, run)
    finally:
        del services.running[run.id]


async def _claimed_run(services: Services, generation_id: UUID) -> tuple[Run, Cancellation | None]:
    """Claim the generation; return its run, and the reason if it is cancelled already.

    Only the run refers to the request, so that `Run.take_content` frees its memory.
    """
    (job, cancelled), claimed = await asyncio.gather(
        _job(services, generation_id), _claim(services, generation_id)
    )
    if job is None:
        return Run(claimed, ""), cancelled
    run = Run(
        claimed,
        job.inbox,
        runs_on=job.runs_on,
        content=job.request,
        is_kept=job.is_not_kept is not True,
        # Without an inbox its stream may be read, whatever the request said.
        is_held=bool(job.inbox) and not claimed.is_stream,
    )
    return run, cancelled


async def _claim(services: Services, generation_id: UUID) -> ledger.Claimed:
    """Claim the generation. Raises `AlreadyResolved` or `DatabaseUnavailable`.

    If the commit succeeded but its reply was lost, the next attempt is refused: the row tells who claimed it.
    """
    claim = ledger.Claim(generation_id, services.name, settings.LEASE_MS)
    attempts = count()

    async def attempt() -> ledger.Claimed:
        next(attempts)
        return await services.commits.write(ledger.claim, claim)

    try:
        return await retry(attempt, CLAIM_RETRY_S, (DatabaseUnavailable,))
    except AlreadyResolved:
        if next(attempts) > 1:
            ours = await services.commits.read(ledger.claimed_by, services.name, generation_id)
            if ours is not None:
                return ours
        raise


async def _job(services: Services, generation_id: UUID) -> tuple[Job | None, Cancellation | None]:
    """Return the job, and the reason if it is cancelled; neither if Redis is away."""
    try:
        return await services.jobs(generation_id)
    except RedisError as error:
        log.warning("the job of %s can't be read: %r", generation_id.hex, error)
        return None, None


async def _run(services: Services, run: Run) -> None:
    request = None
    try:
        await services.turns.take(run.claimed.organization_id, START_UNITS)
        if run.content is not None:
            # A client may have sent an alias, which means nothing to engines.
            request = msgspec.structs.replace(await _request(run), model=run.claimed.model)
            run.usage.expect_echo(request)
            run.context = request.context if run.is_kept else request.context | {"is_stored": False}
            if request.announces_prompt_tokens:
                run.prompt_tokens = await heavy_work.estimate_prompt(request, run.request_bytes)
        end = await _produce(services, run, request)
    except asyncio.CancelledError:
        # The process must end. The pool cancels a task only once, and waits until it has settled.
        end = run.ended(End(Ending.FAILED, SHUTTING_DOWN))
    except DatabaseUnavailable as error:
        log.warning("%s can't run: %r", run.id.hex, error)
        end = run.ended(End(Ending.FAILED, DATABASE_AWAY))
    except Exception:
        log.exception("%s failed", run.id.hex)
        end = run.ended(End(Ending.FAILED, INTERNAL))
    await shield_until_done(_finish(services, run, request, end))


async def _request(run: Run) -> GenerationRequest:
    """Decode the run's request: in the thread if it is large."""
    content = run.take_content()
    if run.request_bytes <= heavy_work.LIGHT_BYTES:
        return requests.from_bytes(content)
    return await heavy_work.aside(requests.from_bytes, content)


async def _produce(services: Services, run: Run, request: GenerationRequest | None) -> End:
    """Try the model's deployments in order until one begins to answer; stream its answer to the end."""
    if request is None:
        return End(Ending.FAILED, JOB_LOST)
    routes = await _routes(services, run, request)
    end = run.stopped or End(Ending.FAILED, NO_DEPLOYMENT)
    for route in services.health.in_order(routes):
        # The client may have left during the attempt before.
        if stopped := run.begin_on(route.target.name, route.on_disconnect):
            end = stopped
            break
        end, may_retry = await _attempt(services, run, request, route)
        if not may_retry:
            break
    return run.ended(end)


async def _routes(services: Services, run: Run, request: GenerationRequest) -> list[Route]:
    """Return the routes that may receive the request; an empty list if there are none, or a stop."""
    if run.claimed.is_test:
        return [SANDBOX]
    # The web process saw a deployment when it admitted the request: if the cache has none, it is too old.
    for max_age_s in (MAX_AGE_S, 0):
        known = await _read_routes(services, run, max_age_s)
        if run.stopped is not None:
            break
        if routes := able(known.get(run.claimed.model, []), request):
            return routes
    return []


async def _read_routes(services: Services, run: Run, max_age_s: float) -> Mapping[str, list[Route]]:
    """Return all routes by model. Raises `DatabaseUnavailable` after the last wait; a stop ends the waits."""
    for wait_s in CLAIM_RETRY_S:
        try:
            return await services.routes.get(max_age_s)
        except DatabaseUnavailable:
            if await run.pause(wait_s) is not None:
                return {}
    return await services.routes.get(max_age_s)


async def _attempt(
    services: Services, run: Run, request: GenerationRequest, route: Route
) -> tuple[End, bool]:
    """Stream from one deployment; return the end, and whether another deployment may be tried."""
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
        # A bug, but this deployment causes it: its attempt has failed.
        run.end_attempt(End(Ending.FAILED, INTERNAL).error_code)
        raise
    return End(Ending.COMPLETED), False


async def _stream(services: Services, run: Run, request: GenerationRequest, route: Route) -> None:
    """Publish the engine's deltas. Raises `EngineError`, or TimeoutError when the run is stopped."""
    claimed = run.claimed
    call = Call(
        run.id.hex,
        request,
        route.target,
        claimed.max_output_tokens,
        run.request_bytes,
        claimed.max_prompt_tokens,
    )
    # Without `aclosing` the upstream's connection stays open until the garbage collector finds the generator.
    async with run.scope(), aclosing(services.engines[route.target.engine].stream(call)) as batches:
        async for batch in batches:
            if run.has_lost_stream:
                return
            if not services.turns.try_take(len(batch)):
                await services.turns.wait(run.organization_id, len(batch))
            is_light = heavy_work.is_light(run.usage, batch)
            passing = run.usage.add(batch) if is_light else await heavy_work.add(run.usage, batch)
            run.publish(services.publisher, passing)
            del batch, passing  # they must not stay in memory until the next ones come
            if services.publisher.is_behind(run):
                await services.publisher.caught_up(run)


async def _finish(services: Services, run: Run, request: GenerationRequest | None, end: End) -> None:
    """Settle, then publish the terminal delta: a client never sees an end that the books do not have."""
    if end.ending is Ending.FENCED_OFF:
        return
    ended_at = time.monotonic()
    # Content first: text that is in no log must not be charged.
    run.publish_held(services.publisher)
    await services.publisher.flushed(run)
    if run.has_lost_stream and end.failure is None:
        # The upstream finished, but a part of the answer is missing.
        end = replace(end, ending=Ending.FAILED, failure=STREAM_LOST)
    settlement = await _settlement(run, request, end)
    failpoint("settle.before_tx")
    try:
        settled_at, charge = await _settle(services, settlement)
    except (AlreadyResolved, DatabaseUnavailable) as error:
        log.warning("%s is left to the reaper: %r", run.id.hex, error)
        return
    failpoint("settle.after_commit")
    terminal = run_usage.terminal(end, run.usage, settlement.tokens, run.claimed.choices_count, settled_at)
    run.publish(services.publisher, terminal)
    if charge is not None:
        log_end(charge, run.usage.total_ms)
        if not run.claimed.is_test:  # the sandbox would hide the times of upstreams
            _observe(charge, time.monotonic() - ended_at)


def _observe(charge: ledger.Charge, settling_s: float) -> None:
    """Count the generation's times for /metrics; `settling_s` is that of the publishing and the commit."""
    settlement = charge.settlement
    process_metrics.SETTLEMENT.observe(settling_s)
    if charge.queued_ms is not None:
        process_metrics.QUEUE_WAIT.observe(charge.queued_ms / 1_000)
    if settlement.first_token_ms is not None and settlement.last_token_ms is not None:
        process_metrics.FIRST_TOKEN.observe(settlement.first_token_ms / 1_000, charge.model)
        if (gaps := charge.tokens.completion_tokens - 1) > 0:
            streamed_ms = settlement.last_token_ms - settlement.first_token_ms
            process_metrics.BETWEEN_TOKENS.observe(streamed_ms / 1_000 / gaps, charge.model)


async def _settle(services: Services, settlement: ledger.Settlement) -> tuple[datetime, ledger.Charge | None]:
    """Write the settlement; return its time, and the charge unless an earlier attempt has written it.

    Raises `AlreadyResolved` or `DatabaseUnavailable`.
    """
    write = partial(services.commits.write, ledger.settle, settlement)
    try:
        charge = await retry(write, SETTLE_RETRY_S, (DatabaseUnavailable,))
    except AlreadyResolved:
        # If the commit succeeded but its reply was lost, the next attempt was refused: the row has our fence.
        ours = Generation.objects.filter(pk=settlement.id, fence=settlement.fence, state=State.SETTLED)
        settled_at = await services.commits.read(ours.values_list("settled_at", flat=True).first)
        if settled_at is None:
            raise
        return settled_at, None
    return charge.settled_at, charge


async def _settlement(run: Run, request: GenerationRequest | None, end: End) -> ledger.Settlement:
    """Return the settlement; count tokens only if the upstream's usage is missing, implausible or low."""
    reported = run.usage.reported
    if reported is not None and run_usage.is_plausible(run.claimed, reported):
        is_low = await _is_low(run, request, reported)
        return run_usage.settlement(run.claimed, request, run.usage, end, is_low=is_low)
    await heavy_work.count_all(run.usage)
    is_charged = end.ending is Ending.COMPLETED or run.usage.completion_tokens
    prompt_tokens = (
        await heavy_work.count_prompt(request, run.request_bytes) if request is not None and is_charged else 0
    )
    return run_usage.settlement(run.claimed, request, run.usage, end, prompt_tokens)


# The length of a token in most texts. Only what is longer than this for each token is counted.
TOKEN_BYTES = 4
# Room for what a request says besides its prompt.
REQUEST_OVERHEAD_BYTES = 1_024


async def _is_low(run: Run, request: GenerationRequest | None, reported: Usage) -> bool:
    """Return whether the upstream counted far fewer tokens than we do, of the answer or of the prompt.

    Counting costs processor time, so only a text that is long for its reported tokens is counted.
    """
    most = run_usage.believable_count(reported.completion_tokens)
    if max(run.usage.pieces, run.usage.text_bytes // TOKEN_BYTES) > most:
        await heavy_work.count_all(run.usage)
        if run.usage.completion_tokens > most:
            return True
    most = run_usage.believable_count(reported.prompt_tokens)
    if request is None or run.request_bytes <= most * TOKEN_BYTES + REQUEST_OVERHEAD_BYTES:
        return False
    prompt_tokens = await heavy_work.count_prompt(request, run.request_bytes)
    return min(prompt_tokens, run.claimed.max_prompt_tokens or prompt_tokens) > most
