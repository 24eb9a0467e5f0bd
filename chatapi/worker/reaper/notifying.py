"""Finds events, chooses their recipients, and delivers them by webhook and mail."""

import asyncio
import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import product

import aiohttp
from asgiref.sync import sync_to_async
from redis.asyncio import Redis
from redis.exceptions import RedisError

from chatapi import catalog
from chatapi.concurrency import repeat
from chatapi.notifications import mail, queue, webhooks
from chatapi.notifications.backlog import KINDS, MAIL, WEBHOOK
from chatapi.notifications.dispatch import BATCH, dispatch, still_gets
from chatapi.notifications.models import Delivery
from chatapi.notifications.queue import Attempt
from chatapi.process_metrics import DELIVERY_ATTEMPTS
from chatapi.worker.routing.shared_cool_downs import cool_downs
from usage.books.outbox import NewEvent
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError
from usage.failpoints import failpoint
from usage.notifications import outages, watch

log = logging.getLogger(__name__)

WATCH_EVERY_S, DELIVER_EVERY_S = 60.0, 1.0
# A deployment is down after this number of cool-downs without a success: 2 + 4 + 8 + 16 + 30 seconds.
COOL_DOWNS = 5
# The outcome of an attempt in metrics, by the state of its delivery afterwards.
OUTCOMES = {
    Delivery.State.DELIVERED: "delivered",
    Delivery.State.DUE: "retried",
    Delivery.State.FAILED: "given_up",
}
# The most messages that are sent at the same time.
AT_ONCE = 32
# Mail has threads of its own, which a hanging mail server may block: the event loop's few threads ask Stripe.
_MAIL_THREADS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mail")


async def watch_forever(commits: GroupCommit, redis: Redis, prefix: str) -> None:
    """Look for events, for ever. Any number of processes may do it at the same time."""
    looks = [partial(_look, commits, find) for find in watch.LOOKS]
    looks += [partial(_look_at_deployments, commits, redis, prefix), partial(_delete_old, commits)]
    await repeat(WATCH_EVERY_S, "looking for events", *looks, expected=(UsageError, RedisError))


async def _look(commits: GroupCommit, find: watch.Find) -> None:
    now = await commits.read(database_now)
    if found := await commits.read(watch.look, now, find):
        failpoint("watch.before_tx")
        await commits.write(watch.write, found)
        failpoint("watch.after_commit")


async def _delete_old(commits: GroupCommit) -> None:
    now = await commits.read(database_now)
    if any(old := await commits.read(queue.old, now)):
        await commits.write(queue.delete, old)


async def _look_at_deployments(commits: GroupCommit, redis: Redis, prefix: str) -> None:
    down = {key for key, number in (await cool_downs(redis, prefix)).items() if number >= COOL_DOWNS}
    now = await commits.read(database_now)
    if found := await commits.read(_outages, down, now):
        failpoint("watch.before_tx")
        await commits.write(outages.write, found)
        failpoint("watch.after_commit")


def _outages(down: Collection[str], now: datetime) -> list[NewEvent]:
    """Return the events of these deployments, and of models that have no other deployment."""
    # The name of a deployment is that of `Route.key`.
    keys = [(row.model_id, f"{row.model_id} {row.name}") for row in catalog.active_deployments()]
    models = {model for model, _ in keys} - {model for model, key in keys if key not in down}
    return outages.changes(now, [key for _, key in keys if key in down], models)


async def deliver_forever(commits: GroupCommit) -> None:
    """Deliver what is due, for ever. Any number of processes may do it at the same time."""
    for kind, outcome in product(KINDS, OUTCOMES.values()):
        DELIVERY_ATTEMPTS.add(kind, outcome, number=0)
    async with webhooks.new_session() as session:
        due = partial(_deliver_due, commits, session)
        await repeat(DELIVER_EVERY_S, "events are not delivered", due, expected=(UsageError,))


async def _deliver_due(commits: GroupCommit, session: aiohttp.ClientSession) -> None:
    taken = AT_ONCE
    while taken == AT_ONCE:
        now = await commits.read(database_now)
        # In each round, because receivers that hang may make the rounds last for hours.
        while await commits.read(dispatch, now) == BATCH:
            pass
        taken = await deliver(commits, session, now)


async def deliver(commits: GroupCommit, session: aiohttp.ClientSession, now: datetime) -> int:
    """Send up to `AT_ONCE` deliveries that are due, and record their results; return their number.

    Raises the first error after all have ended.
    """
    taken = await commits.read(queue.take, now, AT_ONCE)
    sending = (_deliver(commits, session, now, delivery) for delivery in taken)
    # An error waits until all have ended: otherwise they and the next call's would be more than `AT_ONCE`.
    for result in await asyncio.gather(*sending, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
    return len(taken)


async def _deliver(
    commits: GroupCommit, session: aiohttp.ClientSession, now: datetime, delivery: Delivery
) -> None:
    """Send one delivery. After a crash before the record, it is sent again with the same id."""
    person = delivery.user
    if person is not None and not await commits.read(still_gets, delivery.event, person):
        await commits.read(delivery.delete)
        return
    try:
        if delivery.endpoint is not None:
            attempt = await webhooks.send(session, delivery.endpoint, delivery.event, now)
        else:
            assert person is not None
            # `sync_to_async` passes the context on, without which links would lack `CHATAPI_PATH_PREFIX`.
            send = sync_to_async(mail.send, thread_sensitive=False, executor=_MAIL_THREADS)
            attempt = await send(delivery.event, person)
    except Exception as error:
        # One event that can't be sent must not hold up the others.
        log.exception("delivery %s can't be sent", delivery.pk)
        attempt = Attempt(0, error=type(error).__name__)
    failpoint("deliver.after_send")
    state = await commits.read(queue.record, now, delivery, attempt)
    DELIVERY_ATTEMPTS.add(MAIL if delivery.endpoint is None else WEBHOOK, OUTCOMES[state])
