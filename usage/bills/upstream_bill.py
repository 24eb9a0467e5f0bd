"""Reads an upstream's bill: tokens and cost by day and model. Pure, except that it reads the file.

A CSV file has a header with the columns `date` (2026-11-01, UTC), `model`, and any of `requests`,
`prompt_tokens`, `cached_tokens`, `cache_write_tokens`, `completion_tokens`, `cost_usd`. A JSON file is a
response of OpenAI's `GET /v1/organization/costs` with daily buckets; grouped by line item it also has models,
and for some line items quantities of tokens.

Ambiguous bills are refused: if a part of a bill were not read, the bill could agree with wrong books.
"""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from usage.pricing import NANODOLLARS

COUNTS = ("requests", "prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens")
COST = "cost_nanodollars"
# The amount that each column of a CSV file holds.
AMOUNTS = {**{name: name for name in COUNTS}, "cost_usd": COST}
COLUMNS = ("date", "model", *AMOUNTS)
# The model of a bill without models: the sum of all models of a day.
ANY_MODEL = ""
# More than any bill says. It bounds the computation: a number may have a billion digits.
MAX = 10**15


class InvalidBill(Exception):
    """The file cannot be read as a bill; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Bill:
    """The upstream's amounts by day and model. `reported` names the amounts (`COUNTS`, `COST`) that the bill
    has at all; a missing line counts as 0.
    """

    lines: Mapping[tuple[date, str], Mapping[str, int]]
    reported: frozenset[str]
    names_models: bool
    """Whether the bill has amounts by model; otherwise it has only sums of all models."""
    missing: frozenset[tuple[date, str, str]] = frozenset()
    """Day, model and name of each amount that is empty in its line, although the bill reports it."""


def read(path: Path) -> Bill:
    """Return the bill in the file; raises `InvalidBill`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return _page(text) if text.lstrip().startswith("{") else _table(text)
    except (OSError, UnicodeDecodeError, InvalidBill) as error:
        raise InvalidBill(f"{path}: {error}") from error


# A day, a model, an amount's name and its value; None if the bill does not say it.
Row = tuple[date, str, str, int | None]


def _bill(rows: Sequence[Row], reported: Iterable[str]) -> Bill:
    lines: defaultdict[tuple[date, str], defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for day, model, name, amount in rows:
        lines[day, model][name] += amount or 0
    unnamed = {day for day, model in lines if model == ANY_MODEL}
    if unnamed and len(unnamed) < len(lines):
        raise InvalidBill(
            f"{min(unnamed)}: some lines name a model and others do not: name it in all lines, or in none"
        )
    missing = frozenset((day, model, name) for day, model, name, amount in rows if amount is None)
    return Bill(lines, frozenset(reported), names_models=not unnamed, missing=missing)


def _table(text: str) -> Bill:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        _check_header(header)
        rows = [row for cells in reader if cells for row in _line(header, cells)]
    except (csv.Error, ValueError, InvalidBill) as error:
        # An empty file has no first line.
        raise InvalidBill(f"line {max(reader.line_num, 1)}: {error}") from error
    return _bill(rows, [AMOUNTS[column] for column in header if column in AMOUNTS])


def _check_header(header: Sequence[str]) -> None:
    if missing := [name for name in ("date", "model") if name not in header]:
        raise InvalidBill(f"it has no column {' and no column '.join(missing)}")
    if wrong := [name for name in header if name not in COLUMNS]:
        raise InvalidBill(f"{wrong[0]!r} is not a column of a bill; the columns are: {', '.join(COLUMNS)}")
    if len(set(header)) < len(header):
        raise InvalidBill("it has a column twice")
    if not set(header) & AMOUNTS.keys():
        raise InvalidBill(f"it has no column to compare, which is any of: {', '.join(AMOUNTS)}")


def _line(header: Sequence[str], cells: Sequence[str]) -> Iterator[Row]:
    if len(cells) != len(header):
        raise InvalidBill(f"it has {len(cells)} cells, but the first line has {len(header)}")
    values = dict(zip(header, cells, strict=True))
    day, model = date.fromisoformat(values["date"]), values["model"].strip()
    for column in header:
        if column in AMOUNTS:
            read_amount = _nanodollars if column == "cost_usd" else _count
            yield day, model, AMOUNTS[column], read_amount(values[column].strip() or "0")


# What a file of another form makes fail.
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError, RecursionError)


def _page(text: str) -> Bill:
    """Read OpenAI's costs: https://platform.openai.com/docs/api-reference/usage/costs"""
    try:
        rows = list(_costs(json.loads(text, parse_float=Decimal)))
    except _UNREADABLE as error:
        raise InvalidBill(f"this is not a response of /v1/organization/costs: {error!r}") from error
    # A day without results cost nothing.
    return _bill(rows, {COST, *(name for _, _, name, amount in rows if amount is not None)})


def _costs(page: Any) -> Iterator[Row]:
    if page.get("has_more"):
        raise InvalidBill("the file is only the first page: request all days at once, with limit=180")
    if not page["data"]:
        raise InvalidBill("it has no days to compare")
    for bucket in page["data"]:
        # As a float, which becomes infinite where an integer would have a billion digits.
        day = datetime.fromtimestamp(float(bucket["start_time"]), UTC).date()
        for result in bucket["results"]:
            yield from _cost(day, result)


def _cost(day: date, result: Any) -> Iterator[Row]:
    """Read one line item, such as "gpt-4o-2024-08-06, input"."""
    model, _, kind = (result.get("line_item") or ANY_MODEL).rpartition(", ")
    if not model:
        model, kind = kind, ""
    amount = result["amount"]
    if amount["currency"].lower() != "usd":
        raise InvalidBill(
            f"{day}: the costs are in {amount['currency']}, but only US dollars can be compared"
        )
    cost = _nanodollars(amount["value"])
    yield day, model, COST, cost
    unit, quantity = _UNITS.get(result.get("quantity_unit") or ""), result.get("quantity")
    tokens = None if unit is None or quantity is None else round(_number(quantity) * unit)
    for name in _TOKENS.get(kind, ()) if tokens is not None or cost else ():
        yield day, model, name, tokens


# Which of our counts a line item's tokens belong to: cached tokens are prompt tokens too.
_TOKENS = {
    "input": ("prompt_tokens",),
    "cached input": ("prompt_tokens", "cached_tokens"),
    "output": ("completion_tokens",),
}
_UNITS = {"tokens": 1, "1000_tokens": 1_000}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number, 0 or more")
    return int(_number(text))


def _nanodollars(usd: object) -> int:
    """Return US dollars in nanodollars, rounded: a bill may be finer than a nanodollar."""
    return round(_number(usd) * NANODOLLARS)


def _number(value: object) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal(-1)
    if not (number.is_finite() and 0 <= number <= MAX):
        raise ValueError(f"{str(value)!r} is not a number from 0 to {MAX:,}")
    return number
