"""The settings of an installation that also has the other transport (`apps.py`)."""

from chatapi.settings import *  # noqa: F403
from chatapi.settings import INSTALLED_APPS as _INSTALLED_APPS

INSTALLED_APPS = [*_INSTALLED_APPS, "tests.transports.apps.OtherTransport"]
