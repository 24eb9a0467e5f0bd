"""The models that may answer one request: what the books keep of each, and the switch from one to another.

Part of the door that `ledger.py` describes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from usage.errors import AlreadyResolved
from usage.failpoints import failpoint
from usage.models import Generation, State
from usage.pricing import Price


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may answer, with its price and the upper bounds of its tokens."""

    model: str
    name: str
    """The model's name in the request, which the answer repeats."""
    max_output_tokens: int
    """The most tokens of each choice."""
    max_prompt_tokens: int | None
    """The context window; None if it is unknown."""
    price: Price
    """The price at admission, less the organization's discount."""
    prompt_tokens_bound: int = 0
    """The upper bound of the prompt's tokens, for which admission holds money."""


def to_json(candidates: Sequence[Candidate]) -> str | None:
    """Return the column of a row that has these fallbacks; NULL without any."""
    return msgspec.json.encode(candidates).decode() if candidates else None


def from_json(column: str | None) -> tuple[Candidate, ...]:
    """Return the fallbacks in the column of a row."""
    return () if column is None else msgspec.json.decode(column, type=tuple[Candidate, ...])


@dataclass(frozen=True, slots=True)
class Switch:
    """A worker's decision to try another candidate, written before the attempt."""

    id: UUID
    fence: int
    to: Candidate
    requested_model: str | None
    """The name that the client sent; None if it is the model's id."""


def switch(now: datetime, items: Sequence[Switch]) -> list[UUID | AlreadyResolved]:
    """Give running generations another candidate's model, price and bounds; `AlreadyResolved` for one with a
    newer fence, or that is settled.

    They are charged by these from now on, also if another process settles them. The hold stays: it covers
    every candidate.
    """
    results = [item.id if _switch(item) else AlreadyResolved(str(item.id)) for item in items]
    failpoint("switch.before_commit")
    return results


def _switch(item: Switch) -> int:
    running = Generation.objects.filter(id=item.id, state=State.RUNNING, fence=item.fence)
    return running.update(
        model=item.to.model,
        requested_model=item.requested_model,
        max_output_tokens=item.to.max_output_tokens,
        max_prompt_tokens=item.to.max_prompt_tokens,
        deployment="",  # one of the model before
        **item.to.price.columns(),
    )
