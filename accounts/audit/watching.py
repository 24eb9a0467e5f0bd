"""Which models the audit log watches: every one that a page of the admin can change, so that nobody has to
think of it.
"""

from django.contrib.admin import AdminSite

from accounts.audit import recorder
from accounts.pages.admin_mixins import ReadOnlyAdmin


def watch(site: AdminSite) -> None:
    """Watch what the site's pages, and the tables inside them, can change; what the service itself writes is
    not among it.
    """
    pages = [page for page in site._registry.values() if not isinstance(page, ReadOnlyAdmin)]
    recorder.watch(
        {page.model for page in pages} | {inline.model for page in pages for inline in page.inlines}
    )
