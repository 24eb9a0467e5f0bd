"""Django's admin with our site."""

from django.contrib.admin.apps import SimpleAdminConfig


class AdminConfig(SimpleAdminConfig):
    """urls.py loads the admin's pages: only the web process needs them."""

    default_site = "accounts.pages.admin_site.Site"
