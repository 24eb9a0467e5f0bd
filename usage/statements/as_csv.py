"""A statement as CSV: one row for each line, credit note and movement of credit.

`owed_nanodollars` is the amount that the organization owes more because of the row, as in exports of the
ledger: the sum of all rows but the last is the last, the negative of the closing balance.
"""

import csv
import io
from collections.abc import Iterator

from usage.exports.exporting import without_formula
from usage.pricing import to_usd
from usage.statements.document import StatementDocument

COLUMNS = (
    "statement", "status", "row", "date", "id", "corrects", "project_id", "project", "model", "kind",
    "requests", "tokens", "list_price_per_mtok_usd", "price_per_mtok_usd", "discount_usd", "owed_usd",
    "owed_nanodollars",
)  # fmt: skip
_USER_TEXT = ("project", "model")
# The members of a statement that the rows have, and the members that only JSON and PDF have.
_IN_ROWS = {"id", "status", "totals", "lines", "credit_notes", "credit"}
_LEFT_OUT = {
    "object", "organization_id", "organization", "period_start", "period_end", "until", "currency",
    "discounts", "newest_seal",
}  # fmt: skip
assert sorted((*_IN_ROWS, *_LEFT_OUT)) == sorted(StatementDocument.__struct_fields__), (
    "each is in one of them"
)
_Row = dict[str, object]


def as_csv(made: StatementDocument) -> str:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    for row in _rows(made):
        texts = {name: without_formula(str(row[name])) for name in _USER_TEXT if name in row}
        writer.writerow({"statement": made.id, "status": made.status} | row | texts)
    return file.getvalue()


def _rows(made: StatementDocument) -> Iterator[_Row]:
    yield _balance("opening_balance", made.totals.opening_balance.nanodollars)
    for line in made.lines:
        yield {
            "row": "usage",
            "project_id": line.project_id,
            "project": line.project,
            "model": line.model,
            "kind": line.kind,
            "requests": line.requests,
            "tokens": line.tokens,
            "list_price_per_mtok_usd": line.list_price_per_mtok_usd,
            "price_per_mtok_usd": line.price_per_mtok_usd,
            "discount_usd": line.discount.usd,
        } | _owed(line.amount.nanodollars)
    for note in made.credit_notes:
        yield {
            "row": "credit_note",
            "id": note.id,
            "corrects": note.corrects,
            "project_id": note.project_id,
            "project": note.project,
            "model": note.model,
            "kind": note.reason,
            "requests": note.corrections,
        } | _owed(note.amount.nanodollars)
    for moved in made.credit:
        of_day = {"row": "credit", "date": moved.date.isoformat(), "kind": moved.kind}
        yield of_day | _owed(moved.owed_nanodollars)
    yield _balance("closing_balance", made.totals.closing_balance.nanodollars)


def _balance(name: str, nanodollars: int) -> _Row:
    return {"row": name} | _owed(-nanodollars)


def _owed(nanodollars: int) -> _Row:
    return {"owed_usd": to_usd(nanodollars), "owed_nanodollars": nanodollars}
