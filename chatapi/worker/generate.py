"""Runs one generation.

1. Claim its row, and read its job from Redis.
2. Ask the model's deployments until one begins to answer, and publish its deltas (`attempts.py`).
3. Wait until all content is published, and commit the settlement.
4. Publish the terminal delta: a client never sees an end that the books do not have.
"""

import asyncio
import logging
import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from uuid import UUID

import msgspec
from django.conf import settings

from chatapi import process_metrics, tracing
from chatapi.concurrency import retry, shield_until_done
from chatapi.delta_stream import Cancellation, Job, StreamUnavailable
from chatapi.end_log import log_end
from chatapi.wire import requests
from chatapi.wire.deltas import Failed, Usage
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.attempts import INTERNAL, produce
from chatapi.worker.runs import heavy_work, run_spans, run_usage
from chatapi.worker.runs.run import SHUTTING_DOWN, STREAM_LOST, Run
from chatapi.worker.runs.run_usage import End, Ending
from chatapi.worker.worker_services import WorkerServices
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
DATABASE_AWAY = Failed(
    "The service can't reach its database right now. Nothing was charged; send the request again.",
    code="service_unavailable",
    status=503,
    retry_after_ms=1_000,
)

# The cost of starting a run, in deltas (`fair_turns.py`).
START_UNITS = 64
CLAIM_RETRY_S = (0.1, 0.5, 1, 2)
# Waits between attempts while the database is away; after the last one the reaper closes the generation.
SETTLE_RETRY_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30)


async def generate(services: WorkerServices, generation_id: UUID) -> None:
    """Run the generation until it is settled.

    Raises `AlreadyResolved` if another process has claimed it, `StreamUnavailable` if this process does not
    know its server, and `DatabaseUnavailable` if it can't be claimed.
    """
    services.streams.of(generation_id)  # before the claim, so that another worker can have it
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


async def _claimed_run(services: WorkerServices, generation_id: UUID) -> tuple[Run, Cancellation | None]:
    """Claim the generation; return its run, and the reason if it is cancelled already.

    Only the run refers to the request, so that `Run.take_content` frees its memory.
    """
    began_at = time.monotonic()
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
        # Without an inbox its stream may be read even if the request asked for none.
        is_held=bool(job.inbox) and not claimed.is_stream,
    )
    run.span = tracing.begin_run(job.trace_headers, time.monotonic() - began_at)
    return run, cancelled


async def _claim(services: WorkerServices, generation_id: UUID) -> ledger.Claimed:
    """Claim the generation. Raises `AlreadyResolved` or `DatabaseUnavailable`.

    If the commit succeeded but its reply was lost, the next attempt is refused: the row names the claimant.
    """
    claim = ledger.Claim(generation_id, services.name, settings.LEASE_MS)
    attempts = 0

    async def attempt() -> ledger.Claimed:
        nonlocal attempts
        attempts += 1
        return await services.commits.write(ledger.claim, claim)

    try:
        return await retry(attempt, CLAIM_RETRY_S, (DatabaseUnavailable,))
    except AlreadyResolved:
        if attempts > 1:
            ours = await services.commits.read(ledger.claimed_by, services.name, generation_id)
            if ours is not None:
                return ours
        raise


async def _job(services: WorkerServices, generation_id: UUID) -> tuple[Job | None, Cancellation | None]:
    """Return the job, and the reason if it is cancelled; neither if Redis is away."""
    try:
        return await services.jobs.of(generation_id)(generation_id)
    except StreamUnavailable as error:
        log.warning("the job of %s can't be read: %r", generation_id.hex, error)
        return None, None


async def _run(services: WorkerServices, run: Run) -> None:
    request = None
    try:
        await services.turns.take(run.claimed.organization_id, START_UNITS)
        if run.content is not None:
            # A client may have sent an alias, which means nothing to engines; a ticket is always streamed.
            request = msgspec.structs.replace(
                await _request(run), model=run.claimed.model, stream=run.claimed.is_stream
            )
            run.usage.expect_echo(request)
            run.context = request.context if run.is_kept else request.context | {"is_stored": False}
            if request.announces_prompt_tokens:
                run.prompt_tokens = await heavy_work.estimate_prompt(request, run.request_bytes)
            end = await produce(services, run, request)
        else:
            end = End(Ending.FAILED, JOB_LOST)
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
    return await heavy_work.in_thread(requests.from_bytes, content)


async def _finish(services: WorkerServices, run: Run, request: GenerationRequest | None, end: End) -> None:
    """Settle and publish the end, unless another process does; then end the run's span."""
    settlement = None
    if end.ending is not Ending.FENCED_OFF:
        settlement = await _settle_and_publish(services, run, request, end)
    run_spans.end_run(run.span, run.requested, run.claimed.model, settlement, request)


async def _settle_and_publish(
    services: WorkerServices, run: Run, request: GenerationRequest | None, end: End
) -> ledger.Settlement | None:
    """Settle, then publish the terminal delta: a client never sees an end that the books do not have.

    Returns the settlement, or None if it is left to the reaper.
    """
    ended_at = time.monotonic()
    # Content first: text that is in no log must not be charged.
    publisher = services.publishers.of(run.id)
    run.publish_held(publisher)
    await publisher.flushed(run)
    if run.has_lost_stream and end.failure is None:
        # The upstream finished, but a part of the answer is missing.
        end = replace(end, ending=Ending.FAILED, failure=STREAM_LOST)
    settlement = await _settlement(run, request, end)
    failpoint("settle.before_tx")
    try:
        settled_at, charge = await _settle(services, settlement)
    except (AlreadyResolved, DatabaseUnavailable) as error:
        log.warning("%s is left to the reaper: %r", run.id.hex, error)
        return None
    failpoint("settle.after_commit")
    terminal = run_usage.terminal(end, run.usage, settlement.tokens, run.claimed.choices_count, settled_at)
    run.publish(publisher, terminal)
    if charge is not None:
        log_end(charge, run.usage.total_ms)
        if not run.claimed.is_test:  # the sandbox would hide the times of upstreams
            _observe(charge, run.usage.longest_gap_ms, time.monotonic() - ended_at)
    return settlement


def _observe(charge: ledger.Charge, longest_gap_ms: int, settling_s: float) -> None:
    """Count the generation's times for /metrics; `settling_s` is that of the publishing and the commit."""
    settlement = charge.settlement
    process_metrics.SETTLEMENT.observe(settling_s)
    if charge.queued_ms is not None:
        process_metrics.QUEUE_WAIT.observe(charge.queued_ms / 1_000)
    if settlement.first_token_ms is not None and settlement.last_token_ms is not None:
        process_metrics.FIRST_TOKEN.observe(settlement.first_token_ms / 1_000, charge.model)
        # Zeros are counted, too, so that the histogram has all answers with tokens.
        process_metrics.LONGEST_TOKEN_GAP.observe(longest_gap_ms / 1_000, charge.model)
        # Not with reasoning: its tokens may be hidden, and then have no gaps.
        if not charge.tokens.reasoning_tokens and (gaps := charge.tokens.completion_tokens - 1) > 0:
            streamed_ms = settlement.last_token_ms - settlement.first_token_ms
            process_metrics.BETWEEN_TOKENS.observe(streamed_ms / 1_000 / gaps, charge.model)


async def _settle(
    services: WorkerServices, settlement: ledger.Settlement
) -> tuple[datetime, ledger.Charge | None]:
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
    reported, prompt_tokens, is_low = run.usage.reported, 0, False
    if reported is not None and run_usage.is_plausible(run.claimed, reported):
        is_low = await _is_low(run, request, reported)
    else:
        await heavy_work.count_all(run.usage)
        is_charged = end.ending is Ending.COMPLETED or run.usage.completion_tokens
        if request is not None and is_charged:
            prompt_tokens = await heavy_work.count_prompt(request, run.request_bytes)
    return run_usage.settlement(run.claimed, run.usage, end, prompt_tokens, is_low=is_low)


# The length of a token in most texts. Only texts with more bytes for each reported token are counted.
TOKEN_BYTES = 4
# Bytes of a request besides its prompt.
REQUEST_OVERHEAD_BYTES = 1_024


async def _is_low(run: Run, request: GenerationRequest | None, reported: Usage) -> bool:
    """Return whether the upstream counted far fewer tokens than we do, of the answer or of the prompt.

    Counting costs processor time, so only a text that is long for its reported tokens is counted, and a
    prompt only as far as it decides.
    """
    most = run_usage.believable_count(reported.completion_tokens)
    if max(run.usage.pieces, run.usage.text_bytes // TOKEN_BYTES) > most:
        await heavy_work.count_all(run.usage)
        if run.usage.completion_tokens > most:
            return True
    most = run_usage.believable_count(reported.prompt_tokens)
    if request is None or run.request_bytes <= most * TOKEN_BYTES + REQUEST_OVERHEAD_BYTES:
        return False
    prompt_tokens = await heavy_work.count_prompt(request, run.request_bytes, most)
    return min(prompt_tokens, run.claimed.max_prompt_tokens or prompt_tokens) > most
