"""Statements that were issued are read for ever: a later field of their content needs a default."""

import json

from usage.statements import document

MONEY = {"usd": "0.3", "nanodollars": 300_000_000}
PROJECT = {"project_id": "1", "project": "default", "model": "small"}
# As the first release wrote it; never change this.
ISSUED = {
    "id": "2026-01",
    "object": "organization.statement",
    "status": "closed",
    "organization_id": "1",
    "organization": "Acme",
    "period_start": "2026-01-01T00:00:00Z",
    "period_end": "2026-02-01T00:00:00Z",
    "until": "2026-02-01T00:00:00Z",
    "currency": "usd",
    "totals": {"requests": 2}
    | dict.fromkeys(
        (
            "opening_balance", "list_amount", "discount", "usage", "corrections", "charged", "granted",
            "refunded", "closing_balance",
        ),
        MONEY,
    ),
    "lines": [
        PROJECT
        | {"kind": "input", "requests": 2, "tokens": 1_000_000, "list_price_per_mtok_usd": "0.3"}
        | {"price_per_mtok_usd": None, "list_amount": MONEY, "discount": MONEY, "amount": MONEY}
    ],
    "credit_notes": [
        PROJECT
        | {"id": "2026-01-CN1", "corrects": "2026-01", "reason": "correction", "corrections": 1}
        | {"amount": MONEY}
    ],
    "credit": [{"date": "2026-01-03", "kind": "grant", "bookings": 1, "amount": MONEY}],
    "discounts": [{"effective_from": "2025-12-01T00:00:00Z", "percent": "10"}],
    "newest_seal": None,
}  # fmt: skip


def test_content_of_the_first_release_is_still_read() -> None:
    read = document.decode(json.dumps(ISSUED))
    again = json.loads(document.encode(read))
    assert {name: again[name] for name in ISSUED} == ISSUED
