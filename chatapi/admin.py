"""Registers this package's pages with the admin; Django looks for them here."""

from chatapi.pages import (
    catalog_admin,
    event_pages,
    key_admin,
    organization_admin,
    price_admin,
    project_admin,
    rate_limit_admin,
    stored_response_pages,
    webhook_admin,
)

__all__ = [
    "catalog_admin",
    "event_pages",
    "key_admin",
    "organization_admin",
    "price_admin",
    "project_admin",
    "rate_limit_admin",
    "stored_response_pages",
    "webhook_admin",
]
