"""A thousand generations that run at the same time, in the books only: what a busy installation's Live page
has to show.

python -m tests.browser.crowd

prints "running" once they run, gives all of them tokens twice a second until stdin ends, then settles them.
"""

import os
import select
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from usage.books.ledger import Claimed

SIZE = 1_000
LEASE_MS = 60_000
"""The reaper leaves them alone for as long."""
BEAT_S = 0.5


def admitted_and_claimed() -> "list[Claimed]":
    """Admit the requests of a new key, each with its hold, and claim them for a worker."""
    from django.db import transaction

    from accounts.keys import create_key, get_or_create_project
    from chatapi import identity
    from usage.books import ledger
    from usage.database.clock import database_now
    from usage.pricing import Price

    project = get_or_create_project("Crowd", "default")
    key, _ = create_key(project, name="crowd")
    asked = {
        "organization_id": project.organization_id, "project_id": project.pk, "api_key_id": key.pk,
        "time_zone": "UTC", "is_test": False, "model": "sandbox", "endpoint": "chat.completions",
        "dialect": "openai", "is_stream": True, "choices_count": 1, "sampled_count": 1,
        "max_output_tokens": 1_000, "prompt_tokens_bound": 100, "queue_ttl_ms": LEASE_MS,
        "price": Price(1_000_000_000, 1_000_000_000, 2_000_000_000),
    }  # fmt: skip
    with transaction.atomic():
        admissions = [
            ledger.Admission(id=identity.new_id(), **asked)  # type: ignore[arg-type]
            for _ in range(SIZE)
        ]
        ledger.admit(database_now(), admissions)
        claims = [ledger.Claim(admission.id, "crowded-worker", LEASE_MS) for admission in admissions]
        claimed = ledger.claim(database_now(), claims)
    return [each for each in claimed if isinstance(each, ledger.Claimed)]


def beat(crowd: "Sequence[Claimed]", completion_tokens: int) -> None:
    """Set the tokens of all requests to this number: every row of the page changes."""
    from django.db import transaction

    from usage.books import ledger
    from usage.database.clock import database_now

    pulses = [ledger.Pulse(each.id, each.fence, completion_tokens, "") for each in crowd]
    with transaction.atomic():
        ledger.beat(database_now(), [ledger.Beat("crowded-worker", pulses, LEASE_MS)])


def settle(crowd: "Sequence[Claimed]") -> None:
    """Settle all of them, so that nothing stays open or held."""
    from django.db import transaction

    from usage.books import ledger
    from usage.database.clock import database_now
    from usage.models import Outcome, UsageSource
    from usage.pricing import Tokens

    with transaction.atomic():
        ledger.settle(
            database_now(),
            [
                ledger.Settlement(
                    each.id, each.fence, Outcome.CLIENT_CANCELLED, Tokens(0, 0), UsageSource.NONE
                )
                for each in crowd
            ],
        )


def main() -> None:
    """Run until stdin is closed."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "chatapi.settings"
    import django

    django.setup()
    crowd = admitted_and_claimed()
    print("running", flush=True)
    completion_tokens = 0
    while not select.select([sys.stdin], [], [], BEAT_S)[0]:
        completion_tokens += 10
        beat(crowd, completion_tokens)
    settle(crowd)


if __name__ == "__main__":
    main()
