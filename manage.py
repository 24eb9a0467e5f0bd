#!/usr/bin/env python
"""The door to every command: `python manage.py help`."""

import os
import sys


def main() -> None:
    """Run one management command; a wrong setting is one clear line, not a traceback."""
    os.umask(0o077)  # what it writes (the database, secrets, exports) is for nobody else on this machine
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"chatapi: {error}")


if __name__ == "__main__":
    main()
