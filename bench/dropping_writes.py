"""Writes requests beside `manage.py dropgenerations`; runs inside Django."""

import asyncio
import os
import sys
import time
from datetime import timedelta
from typing import Any

from django.core.management import call_command
from django.db import connection

from bench.insights_reads import admission_terms
from bench.measurement import percentiles_ms
from chatapi import identity
from usage.books import ledger
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.models import Generation, Outcome, UsageSource
from usage.pricing import Price, Tokens
from usage.rollups import closed_days, closing

PACE_S = 0.02
ALONE_S = 15.0
KEPT_DAYS = 40


def measure(generations: int, folder: str) -> None:
    """Fill the database and print the times of writes, alone and beside the command."""
    call_command("migrate", verbosity=0)
    call_command("seedusage", generations=generations)
    while closing.close_next():
        pass
    os.sync()  # so that the measured writes do not wait for those of filling
    before = database_now().date() - timedelta(days=KEPT_DAYS)
    rows = Generation.objects.filter(settled_at__lt=closed_days.midnight(before)).count()
    print(f"\n## {connection.vendor}: {rows:,} of {generations:,} generations to drop\n")
    print("| writes of a request | requests | p50 ms | p95 ms | p99 ms | max ms |\n|---|---|---|---|---|---|")
    asyncio.run(
        _measure(
            [sys.executable, "manage.py", "dropgenerations", f"--before={before}", f"--to={folder}/export"]
        )
    )


async def _measure(command: list[str]) -> None:
    commits = GroupCommit()
    terms = await commits.read(admission_terms) | {"price": Price(1_000, 100, 2_000)}
    try:
        _print("alone", await _write(commits, terms, asyncio.create_task(asyncio.sleep(ALONE_S))))
        dropping = await asyncio.create_subprocess_exec(*command)
        _print("beside dropgenerations", await _write(commits, terms, asyncio.create_task(dropping.wait())))
        assert dropping.returncode == 0
    finally:
        await commits.close()


async def _write(commits: GroupCommit, terms: dict[str, Any], until: "asyncio.Task[object]") -> list[float]:
    """Write a request every `PACE_S`, or without a pause if they take longer; return the seconds of each."""
    took = []
    while not until.done():
        began = time.perf_counter()
        await _one(commits, ledger.Admission(id=identity.new_id(), **terms))
        took.append(time.perf_counter() - began)
        await asyncio.sleep(PACE_S - took[-1])
    return took


async def _one(commits: GroupCommit, admission: ledger.Admission) -> None:
    await commits.write(ledger.admit, admission)
    claimed = await commits.write(ledger.claim, ledger.Claim(admission.id, "bench", 15_000))
    ending = ledger.Settlement(
        admission.id,
        claimed.fence,
        Outcome.COMPLETED,
        Tokens(100, 64),
        UsageSource.UPSTREAM,
        "stop",
        attempts=1,
    )
    await commits.write(ledger.settle, ending)


def _print(name: str, took: list[float]) -> None:
    all_ms = percentiles_ms(took)
    assert all_ms is not None
    print(
        f"| {name} | {len(took)} | {all_ms.p50:.1f} | {all_ms.p95:.1f} | {all_ms.p99:.1f} "
        f"| {max(took) * 1_000:.0f} |",
        flush=True,
    )
