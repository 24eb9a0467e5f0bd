"""Reads an upstream's bill: what it says we have used and owe, per day and model. Pure but for the file.

A CSV file has a header and these columns: `date` (2026-11-01, UTC), `model`, and any of `requests`,
`prompt_tokens`, `cached_tokens`, `completion_tokens`, `cost_usd`. A JSON file is an answer of OpenAI's `GET
/v1/organization/costs` with daily buckets; grouped by line item it also tells models, and quantities of
tokens where it has them.

Whatever is in doubt is refused: a bill that is read as less than it says would agree with books that are
wrong.
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

COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
COST = "cost_nanodollars"
AMOUNTS = {**{name: name for name in COUNTS}, "cost_usd": COST}
"""Which amount a CSV file's column tells."""
COLUMNS = ("date", "model", *AMOUNTS)
ANY_MODEL = ""
"""The model of a bill that does not tell models: a day's sum of all."""
MAX = 10**15
"""More than any bill says: a number of a billion digits must not be worked with."""


class InvalidBill(Exception):
    """The file can't be read as a bill; the text says why, and where."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the upstream says: for each day and model the amounts that are `reported`, by their names (`COUNTS`,
    `COST`); none is 0.
    """

    lines: Mapping[tuple[date, str], Mapping[str, int]]
    reported: frozenset[str]
    names_models: bool
    """False when it tells only sums of all models."""
    missing: frozenset[tuple[date, str, str]] = frozenset()
    """Amounts of a day and model that are told otherwise, but not there: something of theirs has a cost and
    no quantity.
    """


def read(path: Path) -> Bill:
    """The bill in the file; raises `InvalidBill`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return _page(text) if text.lstrip().startswith("{") else _table(text)
    except (OSError, UnicodeDecodeError, InvalidBill) as error:
        raise InvalidBill(f"{path}: {error}") from error


Row = tuple[date, str, str, int | None]
"""A day, a model, an amount's name, and how much; None: it is not told."""


def _bill(rows: Sequence[Row], reported: Iterable[str]) -> Bill:
    lines: defaultdict[tuple[date, str], defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for day, model, name, amount in rows:
        lines[day, model][name] += amount or 0
    unnamed = {day for day, model in lines if model == ANY_MODEL}
    if unnamed and len(unnamed) < len(lines):
        raise InvalidBill(
            f"{min(unnamed)}: a line names no model, and others do: name it in all lines, or in none"
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
        # An empty file has no first line either.
        raise InvalidBill(f"line {max(reader.line_num, 1)}: {error}") from error
    return _bill(rows, [AMOUNTS[column] for column in header if column in AMOUNTS])


def _check_header(header: Sequence[str]) -> None:
    if missing := [name for name in ("date", "model") if name not in header]:
        raise InvalidBill(f"it names no column {' and no column '.join(missing)}")
    if wrong := [name for name in header if name not in COLUMNS]:
        raise InvalidBill(f"{wrong[0]!r} is no column of a bill, which are: {', '.join(COLUMNS)}")
    if len(set(header)) < len(header):
        raise InvalidBill("it names a column twice")
    if not set(header) & AMOUNTS.keys():
        raise InvalidBill(f"it names nothing to compare, which is any of: {', '.join(AMOUNTS)}")


def _line(header: Sequence[str], cells: Sequence[str]) -> Iterator[Row]:
    if len(cells) != len(header):
        raise InvalidBill(f"it has {len(cells)} cells, the first line has {len(header)}")
    values = dict(zip(header, cells, strict=True))
    day, model = date.fromisoformat(values["date"]), values["model"].strip()
    for column in header:
        if column in AMOUNTS:
            read_amount = _nanodollars if column == "cost_usd" else _count
            yield day, model, AMOUNTS[column], read_amount(values[column].strip() or "0")


def _page(text: str) -> Bill:
    """OpenAI's costs: https://platform.openai.com/docs/api-reference/usage/costs"""
    try:
        rows = list(_costs(json.loads(text, parse_float=Decimal)))
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        OSError,
        RecursionError,
    ) as error:
        raise InvalidBill(f"this is no answer of /v1/organization/costs: {error!r}") from error
    # A day without costs has cost nothing.
    return _bill(rows, {COST, *(name for _, _, name, amount in rows if amount is not None)})


def _costs(page: Any) -> Iterator[Row]:
    if page.get("has_more"):
        raise InvalidBill("the file is the first page of several: ask for all days at once, with limit=180")
    if not page["data"]:
        raise InvalidBill("there is nothing to compare: it has no days")
    for bucket in page["data"]:
        # By way of a float, which is infinite where an integer would have a billion digits.
        day = datetime.fromtimestamp(float(bucket["start_time"]), UTC).date()
        for result in bucket["results"]:
            yield from _cost(day, result)


def _cost(day: date, result: Any) -> Iterator[Row]:
    """One line item, such as "gpt-4o-2024-08-06, input"."""
    model, _, kind = (result.get("line_item") or ANY_MODEL).rpartition(", ")
    if not model:
        model, kind = kind, ""
    amount = result["amount"]
    if amount["currency"].lower() != "usd":
        raise InvalidBill(
            f"{day}: the costs are in {amount['currency']}, and only US dollars can be compared"
        )
    cost = _nanodollars(amount["value"])
    yield day, model, COST, cost
    tokens = _tokens(result)
    for name in _TOKENS.get(kind, ()) if tokens is not None or cost else ():
        yield day, model, name, tokens


_TOKENS = {
    "input": ("prompt_tokens",),
    "cached input": ("prompt_tokens", "cached_tokens"),
    "output": ("completion_tokens",),
}
"""Which of our counts a line item's tokens are part of: a cached token is a prompt token too."""
_UNITS = {"tokens": 1, "1000_tokens": 1_000}


def _tokens(result: Any) -> int | None:
    unit = _UNITS.get(result.get("quantity_unit") or "")
    return (
        None if unit is None or result.get("quantity") is None else round(_number(result["quantity"]) * unit)
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number, 0 or more")
    return int(_number(text))


def _nanodollars(usd: object) -> int:
    """A bill may be finer than a nanodollar, and is rounded."""
    return round(_number(usd) * NANODOLLARS)


def _number(value: object) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal(-1)
    if not (number.is_finite() and 0 <= number <= MAX):
        raise ValueError(f"{str(value)!r} is not a number from 0 to {MAX:,}")
    return number
