"""Asks the deployments of a model, and of its fallbacks, until one begins to answer, and streams its answer.

`routing/` decides which deployment is asked next, and when; nothing is asked again once a delta is published.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from chatapi.concurrency import MAX_AGE_S
from chatapi.fair_room import NoRoom
from chatapi.models import Engine
from chatapi.tracing import NO_SPAN, Span
from chatapi.wire.deltas import Failed
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.upstream.upstream_errors import QUOTA_TOO_SMALL
from chatapi.worker import fallbacks
from chatapi.worker.deployments import SANDBOX, Route, able
from chatapi.worker.engines import Call, EngineError, Target
from chatapi.worker.routing.affinity import affinity_of
from chatapi.worker.routing.retries import AttemptPlan, RetryBudgets, Step
from chatapi.worker.routing.router import MAX_ROOM_WAIT_S, Place
from chatapi.worker.runs import heavy_work
from chatapi.worker.runs.run import Run
from chatapi.worker.runs.run_usage import End, Ending
from chatapi.worker.worker_services import WorkerServices
from usage.errors import DatabaseUnavailable

log = logging.getLogger(__name__)

BUSY = Failed(
    "All deployments of this model are busy.", code="deployments_busy", status=503, retry_after_ms=1_000
)
NO_DEPLOYMENT = Failed("No deployment serves this model right now.", code="no_deployment", status=503)
INTERNAL = Failed("The server had an error while processing your request.", code="internal_error", status=500)

# OpenTelemetry's names of the APIs.
PROVIDERS: Final = {Engine.OPENAI_COMPATIBLE.value: "openai", Engine.ANTHROPIC.value: "anthropic"}
PORTS: Final = {"http": 80, "https": 443}

# Waits between attempts to read the deployments while the database is away.
ROUTES_RETRY_S = (0.1, 0.5, 1, 2)


async def produce(services: WorkerServices, run: Run, request: GenerationRequest) -> End:
    """Ask deployments until one begins to answer; stream its answer to the end.

    Raises `DatabaseUnavailable` if the deployments can't be read, or a switch to another model can't be
    written.
    """
    plan, end = await _plan(services, run, request)
    while (step := plan.next()) is not None:
        place = await _place(services, run, step)
        if place is not None:
            with place:
                request = await fallbacks.switch_model(services, run, request, step.route)
                attempted, error = await _attempt(services, run, request, step.route, place)
            if error is None or run.has_published or fallbacks.is_final(run, error.failure):
                end = attempted
                break
            # If a fallback model refuses the request, the client gets the requested model's error.
            if not error.failure.is_request_fault:
                end = attempted
            if error.is_retryable:
                plan.failed(step.route, error.failure)
            else:
                plan.leave_model(step.route)
        # The client may have left meanwhile.
        if run.stopped is not None:
            end = run.stopped
            break
    return run.ended(end)


async def _plan(services: WorkerServices, run: Run, request: GenerationRequest) -> tuple[AttemptPlan, End]:
    """Return the plan of attempts, and the end if none of them is made."""
    model = run.requested.model
    routes = await routes_for(services, run, request)
    others = await fallback_routes(services, run, request) if run.requested.fallbacks else []
    end = run.stopped or End(Ending.FAILED, BUSY if routes or others else NO_DEPLOYMENT)
    affinity = None
    if len(routes) > 1 or others:
        affinity = affinity_of(request, run.organization_id, run.request_bytes)
    # A test request asks the sandbox, so it must not use up the budget of the model's live requests.
    budgets = RetryBudgets() if run.claimed.is_test else services.retry_budgets
    return AttemptPlan(services.router, budgets, model, routes, affinity, others), end


async def _place(services: WorkerServices, run: Run, step: Step) -> Place | None:
    """Wait as the step says, and for room at the deployment; return a place there, or None if it stays full.

    All of a run's waits for room together last up to `MAX_ROOM_WAIT_S`. A stop ends the waits.
    """
    stopped = run.apply_rule(step.route.on_disconnect)
    if step.wait_s:
        stopped = await run.pause(step.wait_s)
    if stopped is not None:
        return None
    began_at = time.monotonic()
    try:
        async with run.scope(), asyncio.timeout(MAX_ROOM_WAIT_S - run.waited_for_room_s):
            return await services.router.place(step.route, run.organization_id)
    except (TimeoutError, NoRoom):
        return None
    finally:
        run.waited_for_room_s += time.monotonic() - began_at


async def routes_for(services: WorkerServices, run: Run, request: GenerationRequest) -> list[Route]:
    """Return the routes that may receive the request; an empty list if there are none, or a stop."""
    if run.claimed.is_test:
        return [SANDBOX]
    # There was a deployment when the request was admitted: if the cache has none, it is too old.
    for max_age_s in (MAX_AGE_S, 0):
        known = await _read_routes(services, run, max_age_s)
        if run.stopped is not None:
            break
        if routes := able(known.get(run.claimed.model, []), request):
            return routes
    return []


async def fallback_routes(
    services: WorkerServices, run: Run, request: GenerationRequest
) -> list[list[Route]]:
    """Return the routes of each other model that may answer, in order; those without any are left out."""
    models = [each.model for each in run.claimed.fallbacks]
    if run.claimed.is_test:
        return [[replace(SANDBOX, model=model)] for model in models]
    known = await _read_routes(services, run, MAX_AGE_S)
    if any(model not in known for model in models):
        known = await _read_routes(services, run, 0)
    return [routes for model in models if (routes := able(known.get(model, []), request))]


async def _read_routes(services: WorkerServices, run: Run, max_age_s: float) -> Mapping[str, list[Route]]:
    """Return all routes by model. Raises `DatabaseUnavailable` after the last wait; a stop ends the waits."""
    for wait_s in ROUTES_RETRY_S:
        try:
            return await services.routes.get(max_age_s)
        except DatabaseUnavailable:
            if await run.pause(wait_s) is not None:
                return {}
    return await services.routes.get(max_age_s)


async def _attempt(
    services: WorkerServices, run: Run, request: GenerationRequest, route: Route, place: Place
) -> tuple[End, EngineError | None]:
    """Stream from one deployment; return the end, and the error if the deployment failed."""
    if (stopped := run.begin_attempt(route.target.name, route.on_disconnect)) is not None:
        return stopped, None
    run.attempt_span = _begin_span(run, request, route.target)
    try:
        await _stream(services, run, request, route, place)
    except EngineError as error:
        end = End(Ending.FAILED, error.failure)
        run.end_attempt(end.error_code)
        if not error.is_retryable or error.failure.code == QUOTA_TOO_SMALL.code:
            place.succeeded()  # the request is at fault, or its size
        else:
            place.failed(error.failure)
        if error.is_retryable:
            log.warning(
                "%s: deployment %s of %s failed: %s%s",
                run.id.hex,
                route.target.name,
                run.claimed.model,
                end.error_code,
                f" ({error.cause})" if error.cause else "",
            )
        return end, error
    except Exception as error:
        if isinstance(error, TimeoutError) and run.stopped is not None:
            has_left = run.stopped.ending is Ending.CLIENT_LEFT and not run.has_lost_web
            # An answer in one piece is silent before its end; so is the sandbox, as long as a test wants.
            if has_left and route.target.is_streamed(request) and not run.claimed.is_test:
                place.abandoned(route.target.timeouts.first_delta_ms)
            return run.stopped, None
        # A bug, but one that this deployment's answer causes: the attempt counts as failed.
        run.end_attempt(End(Ending.FAILED, INTERNAL).error_code)
        raise
    return End(Ending.COMPLETED), None


def _begin_span(run: Run, request: GenerationRequest, target: Target) -> Span:
    """Begin the span of an attempt, by OpenTelemetry's conventions for generative AI."""
    if run.span is NO_SPAN:
        return NO_SPAN
    model = target.upstream_model or run.claimed.model
    attributes: dict[str, str | int | bool] = {
        "gen_ai.operation.name": request.prompt.operation,
        "gen_ai.provider.name": PROVIDERS.get(target.engine, target.engine),
        "gen_ai.request.model": model,
        "gen_ai.request.stream": target.is_streamed(request),
        "chatapi.deployment": target.name,
    }
    url = urlsplit(target.base_url)
    if url.hostname:
        attributes["server.address"] = url.hostname
        attributes["server.port"] = url.port or PORTS[url.scheme]
    return run.span.begin_child(f"{request.prompt.operation} {model}", attributes)


async def _stream(
    services: WorkerServices, run: Run, request: GenerationRequest, route: Route, place: Place
) -> None:
    """Publish the engine's deltas. Raises `EngineError`, or TimeoutError when the run is stopped."""
    claimed = run.claimed
    call = Call(
        run.id.hex,
        request,
        route.target,
        claimed.max_output_tokens,
        run.request_bytes,
        claimed.max_prompt_tokens,
        run.attempt_span.headers,
    )
    publisher = services.publishers.of(run.id)
    # Without `aclosing` the upstream's connection stays open until the garbage collector finds the generator.
    async with run.scope(), aclosing(services.engines[route.target.engine].stream(call)) as batches:
        async for batch in batches:
            place.succeeded()
            if run.has_lost_stream:
                return
            if not services.turns.try_take(len(batch)):
                await services.turns.wait(run.organization_id, len(batch))
            if heavy_work.is_light(run.usage, batch):
                run.publish(publisher, run.usage.add(batch))
            else:
                await heavy_work.add(run.usage, batch, partial(run.publish_counted, publisher))
            del batch  # it must not stay in memory until the next one comes
            if publisher.is_behind(run):
                await publisher.caught_up(run)
