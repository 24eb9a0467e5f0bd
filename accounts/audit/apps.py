"""Django's entry for the audit log; urls.py says which models it watches."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    """Its own app, so that its table stands by itself."""

    name = "accounts.audit"
    label = "audit"

    def ready(self) -> None:
        """Listen to Django's own news of people who sign in."""
        from accounts.audit import sign_ins  # noqa: PLC0415  it needs the models, which are loaded now

        sign_ins.listen()
