"""The connections of the backend; Django finds this module by its name."""

import select
from typing import Any

from django.db.backends.postgresql import base

from usage.database.watchdog import watchdog


class DatabaseWrapper(base.DatabaseWrapper):
    """Takes no connection from the pool that its server has ended, and has the watchdog cut one that hangs.

    Pages use it; the threads of `group_commit.py` look after their own connections, which stay open.
    """

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        # Django's own check, CONN_HEALTH_CHECKS, is a statement for each page, waits for a server that hangs,
        # and pauses for 1, 2, 4 s between dead connections.
        if self.pool and _has_ended(connection):
            self.pool.drain()  # a restart of the server has ended all of them
            self.pool.putconn(connection)
            connection = super().get_new_connection(conn_params)
        return connection

    def ensure_connection(self) -> None:
        """Make a connection if there is none. Every statement calls this first: its time begins here."""
        super().ensure_connection()
        watchdog.watch(self)


def _has_ended(connection: Any) -> bool:
    """Return whether the server has closed this idle connection, or has sent its reason for doing so."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
