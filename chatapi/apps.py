"""The Django app `chatapi`."""

from contextlib import suppress

from django.apps import AppConfig
from django.conf import settings

from chatapi.checks import extras, names, numbers, urls  # noqa: F401  they register their checks
from usage import failpoints


class ChatAPIConfig(AppConfig):
    """The Django app `chatapi`."""

    name = "chatapi"

    def ready(self) -> None:
        """Arm a test's failpoints."""
        with suppress(ValueError):  # `checks.names` reports it
            failpoints.arm(settings.FAILPOINTS)
