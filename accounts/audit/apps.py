"""Django's app of the audit log; urls.py says which models it watches."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    """A separate app, for the table's own migrations."""

    name = "accounts.audit"
    label = "audit"

    def ready(self) -> None:
        """Listen to Django's signals of signing in and out."""
        from accounts.audit import sign_ins  # noqa: PLC0415  it needs the models, which are loaded now

        sign_ins.listen()
