"""Checks the catalog: prices, deployments, and one token from each upstream."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from chatapi import catalog, upstream_keys
from chatapi.doctor import stores
from chatapi.doctor.finding import Finding, ok, warning, wrong
from chatapi.models import Deployment, ServedModel
from chatapi.pages.deployment_pages import Finding as Answer
from chatapi.pages.deployment_pages import call, hint
from usage.books import prices

# Upstreams that are called at the same time.
MOST_AT_ONCE = 8
# For all upstreams together; a single call takes at most `deployment_pages.TIMEOUT_S`.
ALL_WITHIN_S = 60.0


def check_catalog() -> Iterator[Finding]:
    """Yield the models that clients can't use."""
    active = set(ServedModel.objects.filter(is_active=True).values_list("pk", flat=True))
    deployed = {row.model_id for row in _right_deployments()}
    priced = set(prices.current())
    for name in sorted(active - priced):
        yield wrong(
            "prices",
            f"The model {name} has no price, so every request for it is refused.",
            'Give it one in the catalog or under Prices; a free model has an explicit "0".',
        )
    for name in sorted(active - deployed):
        yield warning(
            "models",
            f"The model {name} has no active deployment, so clients don't see it.",
            "Add a deployment, or deactivate the model.",
        )
    if served := active & priced & deployed:
        yield ok("models", f"{len(served)} served, all with prices.")
    else:
        yield warning("models", "No model is served.", "Run manage.py loadcatalog FILE.toml.")


def check_deployments() -> Iterator[Finding]:
    """Yield the deployments that are left out because their rows are wrong."""
    for row, mistake in catalog.checked_deployments():
        if mistake:
            remedy = "Correct it on the deployment's page, or deactivate it."
            yield wrong("upstreams", f"{row} is not asked: {mistake}.", remedy)


def _right_deployments() -> Iterator[Deployment]:
    """Yield the deployments that workers ask, and log nothing: `check_deployments` reports the others."""
    return (row for row, mistake in catalog.checked_deployments() if not mistake)


def check_places() -> Iterator[Finding]:
    """Yield the deployments with fewer places than there are workers. Raises `StreamUnavailable`."""
    workers = len(stores.connected_workers())
    for row in _right_deployments():
        places = row.max_concurrent
        if places is not None and places < workers:
            most = f"{places} worker{'s' if places > 1 else ''}"
            yield warning(
                "upstreams",
                f"{row} may get {workers} requests at once: max_concurrent is {places}, but each of "
                f"{workers} workers has one place at least.",
                f"Run at most {most}, or raise max_concurrent to {workers}.",
            )


def check_keys() -> Iterator[Finding]:
    """Yield the deployments whose stored API key can't be decrypted."""
    for row in _right_deployments():
        if upstream_keys.entered(row) is None:
            yield wrong(
                "upstreams", f"{row}: {upstream_keys.LOST}", "Enter it again on the deployment's page."
            )


def check_upstreams() -> Iterator[Finding]:
    """Ask each active deployment for one token, and yield the answers."""
    rows = [row for row in _right_deployments() if row.engine != "sandbox"]
    if not rows:
        yield ok("upstreams", "No model has one; the sandbox needs none.")
        return
    with ThreadPoolExecutor(MOST_AT_ONCE) as threads:
        until = time.monotonic() + ALL_WITHIN_S
        calls: Sequence[tuple[Deployment, Future[Answer | None]]] = [
            (row, threads.submit(_call_before, until, row))
            for row in rows
            if upstream_keys.entered(row) is not None  # `check_keys` has the others
        ]
        for row, answer in calls:
            yield _of_upstream(row, answer.result())


def _call_before(until: float, row: Deployment) -> Answer | None:
    """Call the deployment; return None if the time for all calls is over."""
    return call(row) if time.monotonic() < until else None


def _of_upstream(row: Deployment, answer: Answer | None) -> Finding:
    if answer is None:
        others = f"others took {ALL_WITHIN_S:.0f} s"
        return warning("upstreams", f"{row} was not called: {others}.", "Repair those first.")
    if not answer.error:
        return ok("upstreams", f"{row} answered in {answer.total_ms:.0f} ms.")
    remedy = hint(row, answer.error) or "See the upstream's own log."
    return wrong("upstreams", f"{row}: {answer.outcome}: {answer.message}", remedy)
