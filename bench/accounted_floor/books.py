"""The books of the accounted floor: its tables, and the three operations for chatapi's `GroupCommit`."""

import sys
from collections.abc import Sequence
from datetime import datetime

import msgspec
from django.db import connection, transaction

from usage.database import sql

HELD_TOKENS = 1_000
"""The amount that is held for each request; a token costs one."""
TABLES = (
    "CREATE TABLE floor_budget (id integer PRIMARY KEY, held bigint NOT NULL, charged bigint NOT NULL)",
    "CREATE TABLE floor_generation (id bigint PRIMARY KEY, held bigint NOT NULL, fence integer NOT NULL"
    " DEFAULT 0, prompt_tokens integer, completion_tokens integer)",
    "CREATE TABLE floor_ledger (generation_id bigint PRIMARY KEY, amount bigint NOT NULL)",
    "INSERT INTO floor_budget VALUES (1, 0, 0)",
)


class Usage(msgspec.Struct):
    """The upstream's count of tokens."""

    prompt_tokens: int
    completion_tokens: int


class Answered(msgspec.Struct):
    """The part of an answer, or of its last chunk, that is charged."""

    usage: Usage


class Spent(msgspec.Struct):
    """The end of a generation."""

    number: int
    usage: Usage

    @property
    def amount(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens


def hold(_now: datetime, numbers: Sequence[int]) -> list[None]:
    """Write the generations, and hold a part of the budget for each."""
    with sql.together():
        sql.insert("floor_generation", ("id", "held"), [(number, HELD_TOKENS) for number in numbers])
        held = HELD_TOKENS * len(numbers)
        sql.execute("UPDATE floor_budget SET held = held + %s WHERE id = 1", [held])
    return [None] * len(numbers)


def claim(_now: datetime, numbers: Sequence[int]) -> list[bool]:
    """Give the generations their fence; return for each whether it was still unclaimed."""
    rows = sql.fetch_all(
        f"UPDATE floor_generation SET fence = 1 WHERE id IN ({', '.join(['%s'] * len(numbers))})"
        " AND fence = 0 RETURNING id",
        numbers,
    )
    claimed = {number for (number,) in rows}
    return [number in claimed for number in numbers]


def settle(_now: datetime, spent: Sequence[Spent]) -> list[None]:
    """Write the usage and the charges, and give back what was held."""
    counts = [(each.number, each.usage.prompt_tokens, each.usage.completion_tokens) for each in spent]
    values, parameters = sql.rows_of_values("spent", ("number", "prompt", "completion"), counts)
    given_back, charged = HELD_TOKENS * len(spent), sum(each.amount for each in spent)
    with sql.together():
        sql.execute(
            f"{values} UPDATE floor_generation SET prompt_tokens = prompt, completion_tokens = completion"
            " FROM spent WHERE id = number AND fence = 1",
            parameters,
        )
        # Its primary key refuses a second charge.
        sql.insert(
            "floor_ledger", ("generation_id", "amount"), [(each.number, each.amount) for each in spent]
        )
        sql.execute(
            "UPDATE floor_budget SET held = held - %s, charged = charged + %s WHERE id = 1",
            [given_back, charged],
        )
    return [None] * len(spent)


def make_tables() -> None:
    """Drop and create the tables."""
    with transaction.atomic(), connection.cursor() as cursor:
        for table in ("floor_budget", "floor_generation", "floor_ledger"):
            cursor.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in TABLES:
            cursor.execute(statement)
    connection.close()


def differences() -> str:
    """Return the sums of the books if they disagree once all requests have ended; else an empty text."""
    ((held, charged, n_open, n_settled, tokens, n_charges, amount),) = sql.fetch_all(
        "SELECT held, charged, (SELECT count(*) FROM floor_generation WHERE completion_tokens IS NULL),"
        " (SELECT count(*) FROM floor_generation WHERE fence = 1 AND completion_tokens IS NOT NULL),"
        " (SELECT coalesce(sum(prompt_tokens + completion_tokens), 0) FROM floor_generation),"
        " (SELECT count(*) FROM floor_ledger), (SELECT coalesce(sum(amount), 0) FROM floor_ledger)"
        " FROM floor_budget"
    )
    is_right = (held, n_open) == (0, 0) and n_settled == n_charges and charged == tokens == amount
    return "" if is_right else f"{held=} {charged=} {n_open=} {n_settled=} {tokens=} {n_charges=} {amount=}"


if __name__ == "__main__":
    sys.exit(differences() or 0)
