"""Asks Stripe about payments and reports usage to it, if the settings have its key."""

import asyncio
import logging
from functools import partial

from django.conf import settings

from chatapi.concurrency import repeat
from usage.database.group_commit import GroupCommit
from usage.errors import StripeRefused, StripeUnavailable, UsageError
from usage.payment import metered_usage, payments, sender, stripe_api
from usage.payment.sender import Result

log = logging.getLogger(__name__)

# How long a webhook's payment waits for its credit, at most.
EVERY_S = 1.0
# Organizations whose hours are reported in a row, so that payments need not wait for all.
ORGANIZATIONS_AT_ONCE = 100


async def keep_payments(commits: GroupCommit) -> None:
    """Look at payments and report usage, for ever. Any number of processes may do it at the same time."""
    duties = partial(look_at_payments, commits), partial(report_usage, commits)
    await repeat(EVERY_S, "payments", *duties, expected=(UsageError,))


async def look_at_payments(commits: GroupCommit) -> None:
    """Ask Stripe about the payments that are due, and book them; raises `StripeUnavailable`."""
    for _ in range(payments.BATCH):
        # Claimed one at a time, so that after a failure the next call begins with the others.
        if not (due := await commits.read(payments.claim, 1)):
            break
        await _look_at(commits, due[0])


async def _look_at(commits: GroupCommit, claimed: payments.Claimed) -> None:
    try:
        found = await asyncio.to_thread(stripe_api.payment_state, claimed.session_id)
    except StripeRefused as error:
        log.error("the payment %s is not at Stripe: %s", claimed.id, error)
        await commits.read(payments.postpone, claimed)
    else:
        await commits.read(payments.book, claimed, found)


async def report_usage(commits: GroupCommit) -> None:
    """Write the outbox, and send what is due; raises `StripeUnavailable`."""
    if settings.STRIPE_METER:
        for organization_id in await commits.read(metered_usage.waiting, ORGANIZATIONS_AT_ONCE):
            await _write(commits, organization_id)
    for _ in range(sender.BATCH):
        if not (due := await commits.read(sender.claim, 1)):
            break
        outcome = await asyncio.to_thread(sender.deliver, due[0])
        await commits.read(sender.record, due[0], outcome)
        if outcome.result == Result.AWAY:
            raise StripeUnavailable(outcome.error)


async def _write(commits: GroupCommit, organization_id: int) -> None:
    """Write an organization's hours into the outbox. If that fails, they wait, and others are written."""
    try:
        await commits.read(metered_usage.write, organization_id)
    except UsageError as error:
        log.warning("the usage of organization %s is not reported: %r", organization_id, error)
    except Exception:
        log.exception("the usage of organization %s is not reported", organization_id)
