"""Registers this package's pages with the admin; Django looks for them here.

The pages about API keys and rate limits need the catalog too, so they are in `chatapi/pages/`.
"""

from accounts.pages import organization_admin

__all__ = ["organization_admin"]
