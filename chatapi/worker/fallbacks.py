"""Switches a run to another model that may answer, and decides which failures end the run."""

import logging
from functools import partial
from typing import Final

import msgspec

from chatapi.concurrency import retry
from chatapi.wire.deltas import Failed
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.upstream.upstream_errors import STOPPED
from chatapi.worker.deployments import Route
from chatapi.worker.runs.run import Run
from chatapi.worker.worker_services import WorkerServices
from usage.books import ledger
from usage.errors import AlreadyResolved, DatabaseUnavailable
from usage.failpoints import failpoint

log = logging.getLogger(__name__)

# Waits between attempts to write the switch while the database is away.
SWITCH_RETRY_S: Final = (0.1, 0.5, 1)


async def switch_model(
    services: WorkerServices, run: Run, request: GenerationRequest, route: Route
) -> GenerationRequest:
    """Return the request to the route's model, after the books have switched to it.

    The books come first, so that the model's tokens are charged at its price, whichever process settles the
    generation. Raises `DatabaseUnavailable`. If another process has taken over, the run is stopped.
    """
    requested = run.requested
    model = route.model or requested.model
    if not requested.fallbacks or model == run.claimed.model:
        return request
    to = next(each for each in (requested.as_candidate, *requested.fallbacks) if each.model == model)
    is_requested = model == requested.model
    sent = requested.requested_model or (None if is_requested else requested.model)
    run.deployment = ""  # the next heartbeat must not write a deployment of the model before
    write = partial(services.commits.write, ledger.switch, ledger.Switch(run.id, run.fence, to, sent))
    try:
        await retry(write, SWITCH_RETRY_S, (DatabaseUnavailable,))
    except AlreadyResolved:
        run.fence_off()
        return request
    failpoint("switch.after_commit")
    log.info("%s: %s is asked instead of %s", run.id.hex, model, run.claimed.model)
    run.switch_model(to, sent)
    return msgspec.structs.replace(request, model=model)


def is_final(run: Run, failure: Failed) -> bool:
    """Return whether this failure ends the run.

    It does if the requested model has refused the request, or a person has stopped it.
    """
    return failure is STOPPED or (failure.is_request_fault and run.claimed.model == run.requested.model)
