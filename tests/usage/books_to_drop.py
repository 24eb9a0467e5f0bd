"""Six days of requests, on both sides of the day before which `dropgenerations` drops them."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from uuid import UUID

from django.core.management import call_command
from django.db import transaction

from chatapi import identity
from tests.usage.conftest import completed, run
from usage import rollups
from usage.books import corrections, ledger
from usage.books.credit import Note
from usage.models import Generation, Kind, LedgerEntry, Outcome
from usage.rollups.closed_days import DAY, midnight
from usage.statements import itemizing
from usage.verification import seals

TODAY = datetime.now(UTC).date()
BEFORE = TODAY - 37 * DAY
"""What is settled before this day is dropped: some days of the six that there are."""


def write(ask: Callable[..., ledger.Admission]) -> None:
    """Write six days with a request every five hours, on both sides of `BEFORE`."""
    with transaction.atomic():
        for hours in range(0, 6 * 24, 5):
            moment = midnight(TODAY - 40 * DAY) + timedelta(hours=hours, minutes=7)
            ledger.admit(moment, [admission := ask(id=id_of(moment), model=f"model-{hours % 3}")])
            outcome = Outcome.FAILED if hours % 7 == 0 else Outcome.COMPLETED
            ledger.settle(
                moment, [completed(run(admission, moment), outcome=outcome, first_token_ms=10 + hours)]
            )
        rollups.rebuild()
        itemizing.itemize_anew()
    tidy_up()


def id_of(moment: datetime) -> UUID:
    """Return a UUIDv7 of that moment."""
    return UUID(int=int(moment.timestamp() * 1_000) << 80 | identity.new_id().int & (1 << 80) - 1)


def tidy_up() -> None:
    """Correct one of the oldest charges today, and seal."""
    charge = LedgerEntry.objects.filter(kind=Kind.CHARGE, amount_nanodollars__gt=1).order_by("created_at")[0]
    corrections.correct(charge.pk, -1, Note("story", "alice"))
    seals.seal(timedelta(0))


def drop(folder: Path, before: date = BEFORE, *options: str) -> str:
    """Run the command; what it says."""
    said = StringIO()
    call_command("dropgenerations", f"--before={before}", f"--to={folder}", *options, stdout=said)
    return said.getvalue()


def old() -> list[UUID]:
    return list(
        Generation.objects.filter(settled_at__lt=midnight(BEFORE)).order_by("id").values_list("id", flat=True)
    )
