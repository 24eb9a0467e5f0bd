"""Runs `manage.py` with a wrong clock in Python; the database and Redis have clocks of their own.

python -m tests.faults.skewed +3600 serve --only web       an hour ahead
"""

import os
import sys
import time
from datetime import datetime, timedelta

from tests.installation import Installation


def start(installation: Installation, role: str, seconds: int) -> None:
    """Replace the process of this role by one with this clock, and wait until it is ready."""
    installation.replace(role, "-m", "tests.faults.skewed", f"{seconds:+}")


def _skew(seconds: int) -> None:
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + seconds * 1_000_000_000
    from django.utils import timezone

    right_now = timezone.now

    def wrong_now() -> datetime:
        return right_now() + timedelta(seconds=seconds)

    timezone.now = wrong_now


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")
    _skew(int(sys.argv.pop(1)))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
