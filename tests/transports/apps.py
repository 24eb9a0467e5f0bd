"""A Django application that has the row of another transport, in every process of an installation."""

from django.apps import AppConfig

SCHEME = "other"


class OtherTransport(AppConfig):
    """Adds the row: a transport with a client of its own, which never has the queue."""

    name = "tests.transports"
    label = "other_transport"

    def ready(self) -> None:
        from chatapi.delta_stream import KeepAndEnqueue
        from chatapi.redis_client import connect
        from chatapi.transports import TRANSPORTS, RedisOf
        from chatapi.transports.redis_stream import RedisStream

        class OtherStream(RedisStream):
            def keep_and_enqueue(self, broker_url: str) -> KeepAndEnqueue | None:
                return None

        def other(url: str, _: RedisOf) -> OtherStream:
            own_url = f"unix://{url.removeprefix(f'{SCHEME}://')}"
            return OtherStream(connect(own_url), "other:", url=own_url, ttl_ms=60_000, queue_ttl_ms=5_000)

        TRANSPORTS[SCHEME] = other
