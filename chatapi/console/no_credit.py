"""The notice for organizations without credit, whose requests with live keys are refused."""

from dataclasses import dataclass

from chatapi.console.tenancy import Console
from usage.books import credit
from usage.payment import configuration, metered_usage


@dataclass(frozen=True, slots=True)
class NoCredit:
    """The ways to credit and to a free test key; a URL is empty if the person may not open it."""

    takes_payments: bool
    credit_url: str
    test_key_url: str

    @classmethod
    def of(cls, console: Console) -> "NoCredit | None":
        """Return the notice for the person; None if there is credit, or none is required."""
        balance = credit.balance(console.organization)
        if not balance.is_required or balance.nanodollars > 0:
            return None
        takes_payments = configuration.is_on() and not metered_usage.is_billed(console.organization)
        may_pay = takes_payments and console.may("payment.add_payment")
        may_make = console.may("accounts.add_apikey")
        projects = console.projects_for_keys
        return cls(
            takes_payments,
            credit_url=console.url("credit") if may_pay else "",
            test_key_url=console.url("new_key", project=projects[0].pk if projects else "", test="on")
            if may_make
            else "",
        )
