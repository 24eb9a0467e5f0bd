"""Registers this package's admin pages; Django looks for them here.

The pages of API keys and rate limits also need the catalog, so they are in `chatapi/pages/`.
"""

from accounts.pages import organization_admin

__all__ = ["organization_admin"]
