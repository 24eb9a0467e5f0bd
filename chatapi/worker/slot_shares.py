"""Shares a worker's slots among organizations, so that a flood of one leaves some free for the others.

An organization may take a slot while it has fewer than `MOST_PER_FREE` times as many as are free. One alone
gets eight ninths of the slots, each of two 47 %, and one that has none finds a free slot. The more
organizations fill the slots, the fewer stay free, so nothing has to be divided beforehand. Each worker counts
its own slots: what holds in all workers holds in their sum.
"""

from collections import Counter
from typing import Final

MOST_PER_FREE: Final = 8


class SlotShares:
    """The slots that each organization has; the empty name stands for messages that name none."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, organization: str) -> None:
        self._taken[organization] += 1

    def release(self, organization: str) -> None:
        self._taken[organization] -= 1
        if not self._taken[organization]:
            del self._taken[organization]

    def limits(self, free: int, most: int) -> dict[str, int]:
        """Return how many more slots an organization may take, for each one that may take fewer than `most`.

        `free` slots are free now; each that it takes leaves one less.
        """
        may_take = {
            organization: max(0, -((taken - MOST_PER_FREE * free) // (MOST_PER_FREE + 1)))
            for organization, taken in self._taken.items()
        }
        return {organization: count for organization, count in may_take.items() if count < most}
