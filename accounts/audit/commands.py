"""Audit entries of commands: the actor is the command, with the name that it was given."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from django.conf import settings

from accounts.audit.models import AuditEntry
from accounts.audit.recorder import Actor, acting

# The `--by` of a command that was given no name.
NOBODY = "manage.py"
_MAX_LENGTH = AuditEntry._meta.get_field("actor").max_length or 0


@contextmanager
def acting_command(name: str, by: str = NOBODY) -> Iterator[None]:
    """Record all changes inside as acts of the command."""
    # The routes load the admin's pages, which decide what is watched; a command may not have loaded them.
    import_module(settings.ROOT_URLCONF)
    with acting(lambda: actor_of(name, by)):
        yield


def actor_of(name: str, by: str = NOBODY) -> Actor:
    """Return the command as actor, such as "manage.py rerate" or "alice (manage.py rerate)".

    Nobody checks the name that a command is given, so it never stands alone like that of a person who signed
    in.
    """
    command = f"manage.py {name}"
    return Actor(None, command if by == NOBODY else f"{by[: _MAX_LENGTH - len(command) - 3]} ({command})")
