"""The ledger against a model of plain dicts: after any steps in any order, both agree and the books are
right.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from accounts.models import APIKey, Organization, Project
from chatapi import identity
from tests.usage.conftest import NOW, PRICE, limit
from usage import pricing
from usage.books import corrections, credit, idempotency, ledger, weeks
from usage.books.credit import Note
from usage.books.idempotency import Idempotency
from usage.books.settlement import RETRYABLE_OUTCOMES
from usage.database.clock import local_day
from usage.errors import AlreadyAdmitted, AlreadyResolved, BudgetExceeded, NotBooked
from usage.models import Budget, IdempotencyKey, LedgerEntry, Outcome, UsageSource
from usage.models.budget_keys import BudgetKey, BudgetOwners
from usage.pricing import FREE, Price, Tokens
from usage.verification import seals, verify

LEASE_MS = 6_000
NOTE = Note("why", "machine")
REASONING = Price(PRICE.input_per_mtok_nanodollars, 0, 1_500_000, 9_000_000_001)
FREE_INPUT = Price(0, 0, 2_000_000_000)
"""Without output it holds nothing, and an upstream that makes some anyway costs something."""
KEYS = [Idempotency(sent * 64, asked * 64) for sent in "ab" for asked in "cd"]
"""Two keys of a client's, each for two different requests."""
sizes = st.just(0) | st.integers(1, 30)
tokens = st.builds(
    Tokens,
    st.integers(0, 40),
    st.integers(0, 60),
    st.none() | st.integers(0, 50),
    st.none() | st.integers(0, 70),
)


class Died(Exception):
    """The process is no more."""


@dataclass
class Row:
    """What the model knows of a generation."""

    budget_ids: tuple[str, ...]
    price: Price
    held: int
    lease: datetime
    state: str = "admitted"
    fence: int = 0
    worker: str = ""
    charged: int = 0


@dataclass
class Kept:
    """What the model knows of an idempotency key."""

    generation: UUID
    request_digest: str
    since: datetime


class Ledger(RuleBasedStateMachine):
    """One organization with two keys, limits that are reached soon, and credit that may be required."""

    generations: Bundle[UUID] = Bundle("generations")

    def __init__(self) -> None:
        super().__init__()
        self.example = transaction.atomic()
        self.example.__enter__()
        self.now = NOW
        self.rows: dict[UUID, Row] = {}
        self.posted: Counter[str] = Counter()
        self.pending: Counter[str] = Counter()
        self.kept: dict[tuple[int, str], Kept] = {}
        self.credited = 0
        self.is_credit_required = False

    def teardown(self) -> None:
        """Empty the books for the next example."""
        transaction.set_rollback(True)
        self.example.__exit__(None, None, None)

    @initialize(target=generations, room=st.integers(100_000, 400_000), of_week=st.integers(100_000, 300_000))
    def open_the_books(self, room: int, of_week: int) -> UUID | MultipleResults[UUID]:
        self.organization = Organization.objects.create(name="Machine")
        project = Project.objects.create(organization=self.organization)
        self.keys = [
            APIKey.objects.create(project=project, public=f"machine{number}", digest="0" * 64)
            for number in range(2)
        ]
        limit("key", self.keys[0].pk, "month", room)
        limit("organization", self.organization.pk, "week", of_week)
        self.limits = {
            f"key/{self.keys[0].pk}/month/": room,
            f"organization/{self.organization.pk}/week/": of_week,
        }
        # Chance would hardly ever admit, claim and settle a request that holds nothing though its output
        # costs something.
        first = self.admit(key=0, size=0, price=FREE_INPUT)
        self.claim(first, times=1)
        return first

    # ---- what clients and workers do

    @rule(
        target=generations,
        key=st.integers(0, 1),
        size=sizes,
        price=st.sampled_from([PRICE, FREE, REASONING, FREE_INPUT]),
        sent=st.none() | st.sampled_from(KEYS),
    )
    def admit(self, key: int, size: int, price: Price, sent: Idempotency | None = None) -> UUID:
        wish = self._admission(self.keys[key], size, price, sent)
        day = local_day(self.now, wish.time_zone)
        owners = BudgetOwners(self.organization.pk, self.keys[key].project_id, self.keys[key].pk, None)
        ids = owners.budget_ids(day) + owners.week_ids(day)
        known = self._known(wish)
        (result,) = ledger.admit(self.now, [wish])
        if known is not None and sent is not None:
            assert isinstance(result, AlreadyAdmitted)
            assert (result.generation_id, result.is_same_request) == (
                known.generation,
                known.request_digest == sent.request_digest,
            )
            return known.generation
        if not self._has_room(ids, wish.reserved_nanodollars, self.pending):
            assert isinstance(result, BudgetExceeded)
            assert result.is_in_flight == self._has_room(ids, wish.reserved_nanodollars, Counter())
            return wish.id
        assert result == wish.id
        lease = self.now + timedelta(milliseconds=wish.queue_ttl_ms)
        self.rows[wish.id] = Row(ids, price, wish.reserved_nanodollars, lease)
        self.pending.update(dict.fromkeys(ids, wish.reserved_nanodollars))
        if sent is not None:
            self.kept[wish.api_key_id, sent.digest] = Kept(wish.id, sent.request_digest, self.now)
        return wish.id

    @rule(one=generations, times=st.integers(1, 2))
    def claim(self, one: UUID, times: int) -> None:
        results = ledger.claim(self.now, [ledger.Claim(one, "worker", LEASE_MS)] * times)
        row = self.rows.get(one)
        can = row is not None and row.state == "admitted"
        assert [isinstance(result, ledger.Claimed) for result in results] == [can, False][:times]
        if row is not None and can:
            row.state, row.fence, row.worker, row.lease = "running", row.fence + 1, "worker", self._lease()

    @rule(
        one=generations,
        stale=st.booleans(),
        worker=st.sampled_from(["worker", "reaper"]),
        count=st.integers(0, 60),
    )
    def beat(self, one: UUID, stale: bool, worker: str, count: int) -> None:
        row = self.rows.get(one)
        fence = (row.fence if row else 0) - stale
        (mine,) = ledger.beat(
            self.now, [ledger.Beat(worker, [ledger.Pulse(one, fence, count, "")], LEASE_MS)]
        )
        can = row and row.state == "running" and row.worker == worker and not stale
        assert mine == ({one} if can else set())
        if row and mine:
            row.lease = self._lease()

    @rule(one=generations, to=st.sampled_from([PRICE, FREE, REASONING, FREE_INPUT]), stale=st.booleans())
    def switch(self, one: UUID, to: Price, stale: bool) -> None:
        """Give it another model, with another price and other bounds; what is held stays."""
        row = self.rows.get(one)
        other = ledger.Candidate("other", "other", 7, 7, to)
        fence = (row.fence if row else 0) - stale
        (result,) = ledger.switch(self.now, [ledger.Switch(one, fence, other, "story")])
        can = row is not None and row.state == "running" and not stale
        assert result == one if can else isinstance(result, AlreadyResolved)
        if row is not None and can:
            row.price = to

    @rule(
        one=generations,
        outcome=st.sampled_from(Outcome),
        used=tokens,
        times=st.integers(1, 2),
        at_fault=st.booleans(),
    )
    def settle(self, one: UUID, outcome: Outcome, used: Tokens, times: int, at_fault: bool) -> None:
        row = self.rows.get(one)
        end = ledger.Settlement(
            one, row.fence if row else 0, outcome, used, UsageSource.UPSTREAM, is_final=at_fault
        )
        results = ledger.settle(self.now, [end] * times)
        can = row is not None and row.state == "running"
        assert [isinstance(result, ledger.Charge) for result in results] == [can, False][:times]
        if row is not None and can:
            is_waived = outcome != Outcome.COMPLETED and not used.completion_tokens
            self._close(row, 0 if is_waived else pricing.amount(used, row.price))
            if is_waived and outcome in RETRYABLE_OUTCOMES and not at_fault:
                self._free_the_key_of(one)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 9), behind=st.integers(1, 2), used=tokens)
    def a_zombie_settles(self, pick: int, behind: int, used: Tokens) -> None:
        one = self.running[pick % len(self.running)]
        end = ledger.Settlement(
            one, self.rows[one].fence - behind, Outcome.COMPLETED, used, UsageSource.UPSTREAM
        )
        (result,) = ledger.settle(self.now, [end])
        assert isinstance(result, AlreadyResolved)

    @rule(
        one=generations,
        key=st.integers(0, 1),
        used=tokens,
        what=st.sampled_from(["admit", "claim", "settle", "withdraw", "take over"]),
    )
    def die_before_the_commit(self, one: UUID, key: int, used: Tokens, what: str) -> None:
        """Roll back, so that the next steps find everything as it was."""
        fence = self.rows[one].fence if one in self.rows else 0
        with suppress(Died), transaction.atomic():
            if what == "admit":
                ledger.admit(self.now, [self._admission(self.keys[key], 5, PRICE, KEYS[0])])
            elif what == "claim":
                ledger.claim(self.now, [ledger.Claim(one, "worker", LEASE_MS)])
            elif what == "settle":
                ledger.settle(
                    self.now, [ledger.Settlement(one, fence, Outcome.FAILED, used, UsageSource.COUNTED)]
                )
            elif what == "withdraw":
                ledger.withdraw(self.now, [ledger.Withdrawal(one, "service_unavailable", "no queue")])
            else:
                ledger.take_over(self.now, [ledger.TakeOver(100, LEASE_MS, self.now)])
            raise Died

    @rule(one=generations)
    def withdraw(self, one: UUID) -> None:
        (result,) = ledger.withdraw(self.now, [ledger.Withdrawal(one, "service_unavailable", "no queue")])
        row = self.rows.get(one)
        can = row is not None and row.state == "admitted"
        assert isinstance(result, ledger.Charge) == can
        if row is not None and can:
            row.fence += 1
            self._close(row, 0)
            self._free_the_key_of(one)

    @rule()
    def take_over(self) -> None:
        (orphans,) = ledger.take_over(self.now, [ledger.TakeOver(100, LEASE_MS, self.now)])
        late = {key: row for key, row in self.rows.items() if row.state != "settled" and row.lease < self.now}
        assert {(orphan.id, orphan.fence) for orphan in orphans} == {
            (key, row.fence + 1) for key, row in late.items()
        }
        for row in late.values():
            row.state, row.fence, row.lease = "running", row.fence + 1, self._lease()
            row.worker = row.worker or "reaper"

    # ---- what operators do

    @rule(nanodollars=st.integers(1, 200_000), required=st.booleans())
    def grant(self, nanodollars: int, required: bool) -> None:
        credit.grant(self.organization, nanodollars, NOTE)
        credit.require(self.organization, required)
        self.credited += nanodollars
        self.is_credit_required = required

    @rule(nanodollars=st.integers(1, 100_000))
    def refund(self, nanodollars: int) -> None:
        ever = self._ever()
        if nanodollars > self.credited - self.posted[ever] - self.pending[ever]:
            with pytest.raises(NotBooked):
                credit.refund(self.organization, nanodollars, NOTE)
            return
        credit.refund(self.organization, nanodollars, NOTE)
        self.credited -= nanodollars

    @rule(one=generations, nanodollars=st.integers(-60_000, 60_000).filter(bool))
    def correct(self, one: UUID, nanodollars: int) -> None:
        row = self.rows.get(one)
        if row is None or row.state != "settled":
            return
        entry = LedgerEntry.objects.get(generation=one, kind="charge")
        if row.charged + nanodollars < 0:
            with pytest.raises(NotBooked):
                corrections.correct(entry.pk, nanodollars, Note("why", "machine"))
            return
        corrections.correct(entry.pk, nanodollars, Note("why", "machine"))
        row.charged += nanodollars
        self.posted.update(dict.fromkeys(row.budget_ids, nanodollars))

    @rule()
    def forget_old_keys(self) -> None:
        idempotency.delete_expired(self.now, [None])
        self.kept = {
            name: kept
            for name, kept in self.kept.items()
            if kept.since >= self.now - idempotency.KEY_LIFETIME
        }

    @rule()
    def seal(self) -> None:
        seals.seal(every=timedelta(0))

    @rule(seconds=st.sampled_from([1, 5, 7, 61, 3_600, 86_400, 30 * 86_400, -3_600]))
    def move_the_clock(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(one=consumes(generations))
    def forget(self, one: UUID) -> None:
        """Forget a generation, so that later rules meet newer ones."""

    # ---- what must hold

    @invariant()
    def the_books_are_right(self) -> None:
        assert [str(difference) for difference in verify().differences] == []

    @invariant()
    def the_budgets_are_the_models(self) -> None:
        found = {row.id: (row.posted_nanodollars, row.pending_nanodollars) for row in Budget.objects.all()}
        names = found.keys() | self.posted.keys() | self.pending.keys()
        found |= weeks.read([BudgetKey.parse(name) for name in names if "/week/" in name])
        assert {name: found.get(name, (0, 0)) for name in names} == {
            name: (self.posted[name], self.pending[name]) for name in names
        }

    @invariant()
    def the_keys_are_the_models(self) -> None:
        found = {
            (row.api_key_id, row.digest): (row.generation_id, row.request_digest)
            for row in IdempotencyKey.objects.all()
        }
        assert found == {name: (kept.generation, kept.request_digest) for name, kept in self.kept.items()}

    # ---- the model

    @property
    def running(self) -> list[UUID]:
        """Return the generations of a worker."""
        return [one for one, row in self.rows.items() if row.state == "running"]

    def _known(self, wish: ledger.Admission) -> Kept | None:
        """Return the entry of the request's idempotency key; None if there is none or it is too old."""
        if wish.idempotency is None:
            return None
        name = (wish.api_key_id, wish.idempotency.digest)
        if name in self.kept and self.kept[name].since < self.now - idempotency.KEY_LIFETIME:
            del self.kept[name]
        return self.kept.get(name)

    def _free_the_key_of(self, one: UUID) -> None:
        self.kept = {name: kept for name, kept in self.kept.items() if kept.generation != one}

    def _admission(self, key: APIKey, size: int, price: Price, sent: Idempotency | None) -> ledger.Admission:
        values: dict[str, Any] = {
            "endpoint": "chat.completions",
            "dialect": "openai",
            "is_stream": True,
            "queue_ttl_ms": 60_000,
        }
        values |= {
            "id": identity.new_id(),
            "time_zone": "Asia/Tokyo",
            "is_test": False,
            "model": "story",
            "price": price,
        }
        values |= {
            "choices_count": 1,
            "sampled_count": 1,
            "max_output_tokens": size,
            "prompt_tokens_bound": size,
            "idempotency": sent,
        }
        return ledger.Admission(
            organization_id=self.organization.pk, project_id=key.project_id, api_key_id=key.pk, **values
        )

    def _has_room(self, ids: tuple[str, ...], held: int, pending: Counter[str]) -> bool:
        limits = {name: room for name in ids for start, room in self.limits.items() if name.startswith(start)}
        if self.is_credit_required:
            limits[self._ever()] = self.credited
        return not held or all(
            self.posted[name] + pending[name] + held <= room for name, room in limits.items()
        )

    def _close(self, row: Row, amount: int) -> None:
        row.state, row.charged = "settled", amount
        self.pending.subtract(dict.fromkeys(row.budget_ids, row.held))
        self.posted.update(dict.fromkeys(row.budget_ids, amount))

    def _lease(self) -> datetime:
        return self.now + timedelta(milliseconds=LEASE_MS)

    def _ever(self) -> str:
        return f"organization/{self.organization.pk}/ever/{date(1970, 1, 1)}"


@pytest.mark.timeout(240)
def test_the_ledger_does_what_its_model_does(db: None) -> None:
    """Take about 4 s: each step is followed by a whole verification. Every run takes other steps."""
    run_state_machine_as_test(
        Ledger,
        settings=settings(
            max_examples=8,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
