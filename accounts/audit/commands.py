"""Says who acts while a command of the shell runs: nobody who is signed in, but the command, and whom it says
it runs for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from django.conf import settings

from accounts.audit.models import AuditEntry
from accounts.audit.recorder import Actor, acting

NOBODY = "manage.py"
"""What a command calls the one it runs for, when nobody is named."""
_MAX_LENGTH = AuditEntry._meta.get_field("actor").max_length or 0


@contextmanager
def acting_command(name: str, by: str = NOBODY) -> Iterator[None]:
    """Record what is done inside as the command's act."""
    # The routes load the admin's pages, which say what is watched; a command need not have loaded them.
    import_module(settings.ROOT_URLCONF)
    with acting(lambda: actor_of(name, by)):
        yield


def actor_of(name: str, by: str = NOBODY) -> Actor:
    """The command, such as "manage.py rerate" or "alice (manage.py rerate)".

    Whom it names nobody has checked: so the name never stands alone, as that of one who was signed in does.
    """
    command = f"manage.py {name}"
    return Actor(None, command if by == NOBODY else f"{by[: _MAX_LENGTH - len(command) - 3]} ({command})")
