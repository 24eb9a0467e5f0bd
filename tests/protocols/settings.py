"""The settings of an installation that also has the two small protocols (`apps.py`)."""

from chatapi.settings import *  # noqa: F403
from chatapi.settings import INSTALLED_APPS as _INSTALLED_APPS

INSTALLED_APPS = [*_INSTALLED_APPS, "tests.protocols.apps.SmallProtocols"]
