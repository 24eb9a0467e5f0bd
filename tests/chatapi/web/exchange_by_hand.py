"""An `Exchange` without a server: what the application sends is kept."""

from typing import Any

from chatapi.web.event_stream_consumer import EventStreamConsumer
from chatapi.web.exchange import Exchange
from chatapi.web.kinds import KINDS

KIND = {kind.name: kind for kind in KINDS}


class Client:
    """Takes what it is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        """Do nothing, in place of the application's `send`."""
        self.messages.append(message)

    def exchange(self, kind: str, *, is_started: bool = False) -> Exchange:
        """Return an exchange of that kind, whose request has no headers."""
        connection: Any = EventStreamConsumer()
        connection.scope, connection.base_send = {"path": "/v1/", "headers": []}, self.send
        connection.is_started, connection.is_complete = is_started, False
        return Exchange(KIND[kind], connection)
