"""The first step of a generation in the books: hold the most that it can cost, and write its row.

Part of the door that `ledger.py` describes.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from accounts import end_users
from usage import pricing
from usage.books import budgets, candidates, idempotency
from usage.books.candidates import Candidate
from usage.books.idempotency import Idempotency
from usage.database.clock import local_day
from usage.database.sql import insert
from usage.errors import AlreadyAdmitted, BudgetExceeded
from usage.failpoints import failpoint
from usage.models.budget_keys import BudgetOwners
from usage.pricing import PRICE_COLUMNS, Price


@dataclass(frozen=True, slots=True)
class Admission:
    """A validated request with its caller, its price and the upper bounds of its tokens."""

    id: UUID
    organization_id: int
    project_id: int
    api_key_id: int
    time_zone: str
    is_test: bool
    model: str
    endpoint: str
    dialect: str
    is_stream: bool
    choices_count: int
    """The number of choices in the answer."""
    sampled_count: int
    """The number of choices that are generated and paid for: `best_of` may sample more than are returned."""
    max_output_tokens: int
    prompt_tokens_bound: int
    price: Price
    queue_ttl_ms: int
    queue_class: int | None = None
    includes_usage: bool = False
    max_prompt_tokens: int | None = None
    """The context window; None if it is unknown. It may exceed `prompt_tokens_bound`, because a server adds
    an unknown number of tokens to the prompt.
    """
    requested_model: str | None = None
    """The alias that the client sent, and that the answer names."""
    end_user: str | None = None
    """The name of the end user, as the project has sent it."""
    metadata: Mapping[str, str] | None = None
    """The pairs of keys and values that the client sent, by which reports are filtered."""
    counts_end_user: bool = False
    """Whether the request counts in budgets of the end user."""
    end_user_id: int | None = None
    """Set by `admit` if `counts_end_user`."""
    idempotency: Idempotency | None = None
    fallbacks: tuple[Candidate, ...] = ()
    """Other models that may answer, in order."""

    @property
    def most_tokens(self) -> int:
        """Return the most tokens that the request can use, prompt and answers together."""
        most = self.prompt_tokens_bound + self.max_output_tokens * self.sampled_count
        for other in self.fallbacks:
            most = max(most, other.prompt_tokens_bound + other.max_output_tokens * self.sampled_count)
        return most

    @property
    def reserved_nanodollars(self) -> int:
        """Return the hold: an upper bound of the request's cost, whichever model answers."""
        most = self._upper_bound(self.prompt_tokens_bound, self.max_output_tokens, self.price)
        for other in self.fallbacks:
            cost = self._upper_bound(other.prompt_tokens_bound, other.max_output_tokens, other.price)
            most = max(most, cost)
        return most

    def _upper_bound(self, prompt_tokens: int, output_tokens: int, price: Price) -> int:
        return pricing.upper_bound(prompt_tokens, output_tokens * self.sampled_count, price)


def admit(now: datetime, items: Sequence[Admission]) -> list[UUID | BudgetExceeded | AlreadyAdmitted]:
    """Hold each request's upper bound on its budgets and write its row. Return its id, or the refusal."""
    keyed = {item.id: (item.api_key_id, item.idempotency) for item in items if item.idempotency}
    repeated = idempotency.claim(now, keyed)
    fresh = [item for item in items if item.id not in repeated]
    results: dict[UUID, UUID | BudgetExceeded | AlreadyAdmitted] = {}
    if fresh:
        results |= zip([item.id for item in fresh], _admit(now, fresh), strict=True)
    for id_, known in repeated.items():
        first = results.get(known.generation_id)
        # A first request that is refused in this batch leaves no row to attach to: refuse its repetition too.
        results[id_] = first if isinstance(first, BudgetExceeded) and known.is_same_request else known
    return [results[item.id] for item in items]


def _admit(now: datetime, items: Sequence[Admission]) -> list[UUID | BudgetExceeded]:
    items = _with_end_users(items)
    # If one does not fit, or a budget has no row yet, decide about each request separately.
    results: list[UUID | BudgetExceeded] = (
        [item.id for item in items] if _hold(now, items) else _hold_what_fits(now, items)
    )
    fitting = [item for item, result in zip(items, results, strict=True) if isinstance(result, UUID)]
    if fitting:
        insert("usage_generation", _COLUMNS, [_row(now, item) for item in fitting])
    refused = [
        item for item, result in zip(items, results, strict=True) if isinstance(result, BudgetExceeded)
    ]
    idempotency.release(item.id for item in refused if item.idempotency)
    failpoint("admit.before_commit")
    return results


def _with_end_users(items: Sequence[Admission]) -> Sequence[Admission]:
    """Return the items with the ids of the end users that count; a first request makes its end user."""
    names = {(item.project_id, item.end_user) for item in items if item.counts_end_user and item.end_user}
    if not names:
        return items
    ids = end_users.ids_of(names)
    return [
        replace(item, end_user_id=ids[item.project_id, item.end_user])
        if item.counts_end_user and item.end_user
        else item
        for item in items
    ]


def _hold(now: datetime, items: Sequence[Admission]) -> bool:
    """Hold the upper bounds of all items, or nothing. Return whether they are held."""
    amounts: defaultdict[str, int] = defaultdict(int)
    for item in items:
        # Free requests hold nothing, so a batch of them locks no budget.
        if reserved := item.reserved_nanodollars:
            for budget_id in _budget_ids(now, item):
                amounts[budget_id] += reserved
    return not amounts or budgets.hold(amounts)


def _hold_what_fits(now: datetime, items: Sequence[Admission]) -> list[UUID | BudgetExceeded]:
    """Decide in memory which requests fit: a batch of refusals costs a constant number of statements."""
    # In order of arrival: an earlier request of the batch gets the room that a later one then lacks.
    headroom = budgets.read_headroom({budget_id for item in items for budget_id in _budget_ids(now, item)})
    results: list[UUID | BudgetExceeded] = []
    for item in items:
        # Weeks without a limit are not among those that are known.
        ids = (*_budget_ids(now, item), *BudgetOwners.of(item).week_ids(local_day(now, item.time_zone)))
        refused = budgets.reserve(headroom, ids, item.reserved_nanodollars, item.time_zone)
        results.append(refused or item.id)
    is_held = _hold(now, [item for item, result in zip(items, results, strict=True) if result == item.id])
    # If a limit was lowered since the headroom was read, read it again.
    return results if is_held else _hold_what_fits(now, items)


def _budget_ids(now: datetime, item: Admission) -> tuple[str, ...]:
    return BudgetOwners.of(item).budget_ids(local_day(now, item.time_zone))


_COLUMNS = (
    "id", *BudgetOwners._fields, "is_test", "model", "requested_model", "end_user", "metadata", "endpoint",
    "dialect", "is_stream", "includes_usage", "choices_count", "sampled_count", "max_output_tokens",
    "max_prompt_tokens", "fallbacks", *PRICE_COLUMNS, "reserved_nanodollars", "budget_day", "queue_class",
    "lease_expires_at", "admitted_at",
)  # fmt: skip


def _row(now: datetime, item: Admission) -> list[Any]:
    computed = {
        **item.price.columns(),
        "metadata": json.dumps(item.metadata) if item.metadata else None,
        "fallbacks": candidates.to_json(item.fallbacks),
        # Kept in the row, because a request that ends after midnight is charged to the day that held it.
        "budget_day": local_day(now, item.time_zone),
        "lease_expires_at": now + timedelta(milliseconds=item.queue_ttl_ms),
        "admitted_at": now,
    }
    return [computed[name] if name in computed else getattr(item, name) for name in _COLUMNS]
