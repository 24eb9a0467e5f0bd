"""Logs one line for each generation when it is settled, without content and secrets."""

import logging

from chatapi.log_formats import fields
from usage.books.ledger import Charge
from usage.pricing import NANODOLLARS

log = logging.getLogger("chatapi.generations")


def log_end(charge: Charge, total_ms: int | None = None) -> None:
    """Log how a generation ended; `total_ms` is None if no worker has run it to its end."""
    settlement, tokens = charge.settlement, charge.tokens
    log.info(
        "generation",
        extra=fields(
            id=charge.id.hex,
            key=charge.api_key,
            model=charge.model,
            requested_model=charge.requested_model,
            deployment=settlement.deployment or None,
            attempts=settlement.attempts,
            outcome=str(settlement.outcome),
            error=settlement.error_code or None,
            prompt_tokens=tokens.prompt_tokens,
            completion_tokens=tokens.completion_tokens,
            cost_usd=f"{charge.amount_nanodollars / NANODOLLARS:.9f}",
            queued_ms=charge.queued_ms,
            first_token_ms=settlement.first_token_ms,
            last_token_ms=settlement.last_token_ms,
            total_ms=total_ms,
        ),
    )
