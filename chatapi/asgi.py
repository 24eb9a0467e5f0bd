"""The ASGI application: hot routes go straight to their consumers, everything else through Django."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import re_path

django_application = get_asgi_application()

from chatapi.web.consumers import ChatCompletions  # noqa: E402  needs the apps to be loaded
from chatapi.wire.dialects import DIALECTS  # noqa: E402

_PREFIX = rf"^(?:(?P<dialect>{'|'.join(sorted(DIALECTS))})/)?v1/"

application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                re_path(_PREFIX + r"chat/completions$", ChatCompletions.as_asgi()),
                re_path(r"", django_application),  # type: ignore[arg-type]  # Channels routes to ASGI applications
            ]
        ),
    }
)
