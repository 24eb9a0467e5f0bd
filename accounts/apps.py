"""The Django apps of this package: Django's admin with our site, and the audit log's tables.

Settings name both classes, so that Django does not look for the app of `accounts` itself here.
"""

from django.apps import AppConfig
from django.contrib.admin.apps import SimpleAdminConfig


class AdminConfig(SimpleAdminConfig):
    """The admin without autodiscovery: urls.py loads the pages, which only the web process needs."""

    default_site = "accounts.pages.admin_site.Site"


class AuditConfig(AppConfig):
    """The audit log, an app of its own for its migrations; urls.py says which models it watches."""

    name = "accounts.audit"
    label = "audit"

    def ready(self) -> None:
        from accounts.audit import sign_ins  # noqa: PLC0415  it needs the models, which are loaded now

        sign_ins.listen()


class SignInConfig(AppConfig):
    """Signing in, an app of its own for its migrations."""

    name = "accounts.sign_in"
    label = "sign_in"
    verbose_name = "Sign-in"

    def ready(self) -> None:
        from accounts.sign_in import change_mail  # noqa: PLC0415  it needs the models, which are loaded now

        change_mail.listen()
