"""Django's admin with our site."""

from django.contrib.admin.apps import SimpleAdminConfig


class AdminConfig(SimpleAdminConfig):
    """The admin without autodiscovery: urls.py loads the pages, which only the web process needs."""

    default_site = "accounts.pages.admin_site.Site"
