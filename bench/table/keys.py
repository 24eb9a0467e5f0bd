"""Makes many API keys; runs inside Django."""

from pathlib import Path

from django.db import transaction

from accounts import keys
from accounts.audit.commands import acting_command

KEYS_EACH = 10
"""The number of keys of each organization."""


def make(number: int, path: str) -> None:
    """Make this number of keys, ten for each organization, and write them to a file, one a line."""
    secrets = []
    for organization in range(number // KEYS_EACH):
        with acting_command("bench"), transaction.atomic():
            project = keys.get_or_create_project(f"Organization {organization}", "default")
            secrets += [keys.create_key(project, name=f"key {each}")[1] for each in range(KEYS_EACH)]
    Path(path).write_text("\n".join(secrets) + "\n")
