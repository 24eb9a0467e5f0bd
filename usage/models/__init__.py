"""The tables of usage and money: generations, prices, budgets, credit, the ledger, its seals and rollups.

Amounts are integer nanodollars; prices are nanodollars per million tokens. Times are the database's clock.
Rows keep names and prices as values, so that history survives renames and price changes.
"""

from usage.models.budget_keys import Period, Scope
from usage.models.budgets import Budget, BudgetLimit, Credit
from usage.models.generations import (
    ANY_ERROR,
    FAILED,
    OPEN,
    Generation,
    IdempotencyKey,
    Outcome,
    State,
    UsageNote,
    UsageSource,
)
from usage.models.ledger import BOOKED, CHARGED, OWED_SIGNS, SPENT, Kind, LedgerEntry, LedgerSeal
from usage.models.notifications import (
    CHOSEN_KINDS,
    ENDS,
    MAX_SUBJECT_CHARS,
    NEWEST_OF_OUTAGE,
    OPERATORS_KINDS,
    OUTAGES_KINDS,
    TENANTS_KINDS,
    WITH_AN_END,
    Event,
    EventKind,
)
from usage.models.prices import Discount, Price
from usage.models.refused_requests import RefusedKeys, RefusedRequests
from usage.models.retention import RetentionHorizon
from usage.models.rollups import (
    ClosedDay,
    DailyEndUserUsage,
    DailyFirstTokens,
    DailyTotals,
    DailyUsage,
    Dimension,
    HourlyUsage,
    MonthlyEndUserUsage,
)
from usage.models.spend_alerts import SpendAlert
from usage.models.statements import CORRECTING, CREDITING, DailyItem, ItemizedDay, ItemKind, Statement
from usage.models.verification import LedgerCheck

__all__ = [
    "ANY_ERROR", "BOOKED", "CHARGED", "CHOSEN_KINDS", "CORRECTING", "CREDITING", "ENDS", "FAILED",
    "MAX_SUBJECT_CHARS", "NEWEST_OF_OUTAGE", "OPEN", "OPERATORS_KINDS", "OUTAGES_KINDS", "OWED_SIGNS",
    "SPENT", "TENANTS_KINDS", "WITH_AN_END", "Budget", "BudgetLimit", "ClosedDay", "Credit",
    "DailyEndUserUsage", "DailyFirstTokens", "DailyItem", "DailyTotals", "DailyUsage", "Dimension",
    "Discount", "Event", "EventKind", "Generation", "HourlyUsage", "IdempotencyKey", "ItemKind",
    "ItemizedDay", "Kind", "LedgerCheck", "LedgerEntry", "LedgerSeal", "MonthlyEndUserUsage", "Outcome",
    "Period", "Price", "RefusedKeys", "RefusedRequests", "RetentionHorizon", "Scope", "SpendAlert", "State",
    "Statement", "UsageNote", "UsageSource",
]  # fmt: skip
