"""Watches every model that an admin page can change, so that new pages need no code for the audit log."""

from django.contrib.admin import AdminSite

from accounts.audit import recorder
from accounts.pages.read_only_admin import ReadOnlyAdmin


def watch(site: AdminSite) -> None:
    """Watch the models of the site's pages and inlines; not the rows that only the service writes."""
    pages = [page for page in site._registry.values() if not isinstance(page, ReadOnlyAdmin)]
    recorder.watch(
        {page.model for page in pages} | {inline.model for page in pages for inline in page.inlines}
    )
