"""A Django application that has the rows of the two small protocols, in every process of an installation."""

from django.apps import AppConfig

from chatapi.wire.protocols import PROTOCOLS
from tests.protocols.small import EVENTS, VECTORS


class SmallProtocols(AppConfig):
    """Adds the rows before the routes are made of them (`chatapi/asgi.py`)."""

    name = "tests.protocols"
    label = "small_protocols"

    def ready(self) -> None:
        from accounts.models import KeyScope
        from chatapi.web import completions
        from chatapi.web.exchange import Kind
        from chatapi.web.kinds import KINDS

        for protocol in (VECTORS, EVENTS):
            PROTOCOLS[protocol.name] = protocol
            KINDS.append(
                Kind(protocol.name, protocol.name, completions.create, KeyScope.COMPLETIONS, protocol.name)
            )
