"""Reads an upstream's bill: what it says we have used and owe, per day and model. Pure but for the file.

A CSV file has a header and these columns: `date` (2026-11-01, UTC), `model`, and any of `requests`, `prompt_tokens`, `cached_tokens`,
`completion_tokens`, `cost_usd`. A JSON file is an answer of OpenAI's `GET /v1/organization/costs` with daily buckets; grouped by line
item it also tells models, and quantities of tokens where it has them.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from usage.pricing import NANODOLLARS

COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
COST = "cost_nanodollars"
ANY_MODEL = ""
"""The model of a bill that does not tell models: a day's sum of all."""


class NotABill(Exception):
    """The file can't be read as a bill; the text says why, and where."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the upstream says: for each day and model, the amounts by their names (`COUNTS`, `COST`), as far as it tells them."""

    lines: Mapping[tuple[date, str], Mapping[str, int]]
    names_models: bool
    """False when it tells only sums of all models."""

    @property
    def told(self) -> set[str]:
        """Which amounts it tells at all."""
        return {name for amounts in self.lines.values() for name in amounts}


def read(path: Path) -> Bill:
    """The bill in the file; raises `NotABill`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise NotABill(f"{path}: {error}") from error
    rows = list(_costs(text) if text.lstrip().startswith("{") else _table(text))
    names_models = all(model != ANY_MODEL for _, model, _, _ in rows)
    lines: defaultdict[tuple[date, str], defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for day, model, name, amount in rows:
        lines[day, model if names_models else ANY_MODEL][name] += amount
    return Bill(lines, names_models)


Row = tuple[date, str, str, int]


def _table(text: str) -> Iterable[Row]:
    reader = csv.DictReader(text.splitlines())
    missing = {"date", "model"} - set(reader.fieldnames or [])
    if missing:
        raise NotABill(f"the first line names no column {' and no column '.join(sorted(missing))}")
    for row in reader:
        try:
            day = date.fromisoformat(row["date"])
            amounts = [(name, int(row[name])) for name in COUNTS if row.get(name)]
            if row.get("cost_usd"):
                amounts.append((COST, _nanodollars(row["cost_usd"])))
        except (ValueError, InvalidOperation) as error:
            raise NotABill(f"line {reader.line_num}: {error}") from error
        for name, amount in amounts:
            yield day, row["model"], name, amount


def _costs(text: str) -> Iterable[Row]:
    """OpenAI's costs: https://platform.openai.com/docs/api-reference/usage/costs"""
    try:
        page = json.loads(text, parse_float=Decimal)
        if page.get("has_more"):
            raise NotABill("the file is the first page of several: ask for all days at once, with limit=180")
        for bucket in page["data"]:
            day = datetime.fromtimestamp(int(bucket["start_time"]), UTC).date()
            for result in bucket["results"]:
                yield from _cost(day, result)
    except (KeyError, TypeError, ValueError, AttributeError, InvalidOperation) as error:
        raise NotABill(f"this is no answer of /v1/organization/costs: {error!r}") from error


def _cost(day: date, result: Any) -> Iterable[Row]:
    """One line item, such as "gpt-4o-2024-08-06, input"."""
    model, _, kind = (result.get("line_item") or ANY_MODEL).rpartition(", ")
    if not model:
        model, kind = kind, ""
    amount = result["amount"]
    if amount["currency"].lower() != "usd":
        raise NotABill(f"{day}: the costs are in {amount['currency']}, and only US dollars can be compared")
    yield day, model, COST, _nanodollars(amount["value"])
    tokens = _tokens(result)
    for name in _TOKENS.get(kind, ()) if tokens is not None else ():
        yield day, model, name, tokens or 0


_TOKENS = {"input": ("prompt_tokens",), "cached input": ("prompt_tokens", "cached_tokens"), "output": ("completion_tokens",)}
"""Which of our counts a line item's tokens are part of: a cached token is a prompt token too."""
_UNITS = {"tokens": 1, "1000_tokens": 1_000}


def _tokens(result: Any) -> int | None:
    unit = _UNITS.get(result.get("quantity_unit") or "")
    return None if unit is None or result.get("quantity") is None else round(Decimal(result["quantity"]) * unit)


def _nanodollars(usd: object) -> int:
    """A bill may be finer than a nanodollar, and is rounded."""
    return round(Decimal(str(usd)) * NANODOLLARS)
