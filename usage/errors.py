"""What can go wrong with money.

UsageError
├── BudgetExceeded        a budget has no room; `is_in_flight` tells whether running requests hold the rest
├── NotPriced             the model has no price, so it is not served
├── AlreadyResolved       the generation is settled, or another fence holds it
└── DatabaseUnavailable   the books can't be written now; nothing was admitted
"""


class UsageError(Exception):
    """The root of this package's errors."""


class BudgetExceeded(UsageError):
    """A budget has no room for what the request could cost.

    `is_in_flight`: it would fit if the holds of running requests ended at nothing, so a later try may succeed.
    """

    def __init__(self, budget_id: str, *, is_in_flight: bool) -> None:
        super().__init__(budget_id)
        self.budget_id = budget_id
        self.is_in_flight = is_in_flight


class NotPriced(UsageError):
    """The model has no price that is in effect: no price, no service."""


class AlreadyResolved(UsageError):
    """Someone else settled the generation, or took it over with a newer fence."""


class DatabaseUnavailable(UsageError):
    """The database could not be reached or did not answer in time."""
