"""Django's `migrate`, without PostgreSQL's time limit for a transaction that waits for its client."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connections

_LIMIT = "idle_in_transaction_session_timeout"


class Command(migrate.Command):
    """Migrates the database; what a migration computes between two statements may take any time."""

    def handle(self, *args: Any, **options: Any) -> None:
        database = connections[options["database"]]
        if database.vendor != "postgresql":
            super().handle(*args, **options)
            return
        with database.cursor() as cursor:
            cursor.execute(f"SET {_LIMIT} = 0")
        super().handle(*args, **options)
        with database.cursor() as cursor:
            cursor.execute(f"RESET {_LIMIT}")
