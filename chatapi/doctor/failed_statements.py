"""Names the statements that can't be issued."""

from collections.abc import Iterator

from chatapi.doctor.finding import Finding, wrong
from usage.models import Event, EventKind, Statement
from usage.notifications import texts

MAX_NAMED = 10


def check_statements() -> Iterator[Finding]:
    """Yield each statement of which operators got the event that it can't be issued, until it is issued."""
    failed = Event.objects.filter(kind=EventKind.STATEMENT).order_by("-created_at", "-pk")
    open_ones = [each for each in failed if not _is_issued(each)]
    for event in open_ones[:MAX_NAMED]:
        yield wrong(
            "statements",
            texts.sentence(event),
            "Run verifyledger, and correct what the reaper's log says; it is tried every 30 seconds.",
        )
    if len(open_ones) > MAX_NAMED:
        yield wrong(
            "statements",
            f"{len(open_ones) - MAX_NAMED} more are not issued.",
            "The admin's Events names them.",
        )


def _is_issued(event: Event) -> bool:
    rows = Statement.objects.filter(organization=int(event.data["organization_id"]))
    return rows.filter(month=f"{event.data['month']}-01").exists()
