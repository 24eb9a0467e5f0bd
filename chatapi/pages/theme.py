"""How the admin looks: its name, its icon, and its sidebar in the order of an operator's questions."""

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def _page(title: str, icon: str, model: str) -> dict[str, Any]:
    """An entry of the admin's sidebar: icons are names in the Material Symbols font, which the theme brings."""
    app, _, name = model.partition(".")

    def is_shown(request: HttpRequest) -> bool:
        return any(request.user.has_perm(f"{app}.{act}_{name}") for act in ("view", "change"))

    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app}_{name}_changelist"),
        "permission": is_shown,
    }


def _overall(title: str, icon: str, name: str, model: str) -> dict[str, Any]:
    """An entry for a page that is no model's: for those who may view the rows that it shows."""
    app, _, model_name = model.partition(".")
    permission = f"{app}.view_{model_name}"
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{name}"),
        "permission": lambda request: request.user.has_perm(permission),
    }


THEME: dict[str, Any] = {
    "SITE_TITLE": "chatapi",
    "SITE_HEADER": "chatapi",
    "SITE_SYMBOL": "forum",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("chatapi/icon.svg")}
    ],
    # What the theme leaves too pale, or without a name.
    "STYLES": [lambda request: static("chatapi/admin.css")],
    "SCRIPTS": [lambda request: static("chatapi/admin.js"), lambda request: static("chatapi/suggest.js")],
    # An object's history is in the audit log.
    "SHOW_HISTORY": lambda request: request.user.has_perm("audit.view_auditentry"),
    "SHOW_VIEW_ON_SITE": False,
    "SIDEBAR": {
        "navigation": [
            {
                "items": [
                    _overall("Overview", "monitoring", "index", "usage.hourlyusage"),
                    _overall("Live", "bolt", "live", "usage.generation"),
                    _overall("Requests", "receipt_long", "requests", "usage.generation"),
                ]
            },
            {
                "title": "Usage",
                "items": [
                    _page("Ledger", "account_balance", "usage.ledgerentry"),
                    _page("Hourly usage", "bar_chart", "usage.hourlyusage"),
                    _page("Refused requests", "block", "usage.refusedrequests"),
                    _page("Credit", "wallet", "usage.credit"),
                    _page("Budgets", "savings", "usage.budget"),
                    _page("Budget limits", "speed", "usage.budgetlimit"),
                ],
            },
            {
                "title": "Tenants",
                "items": [
                    _page("Organizations", "domain", "accounts.organization"),
                    _page("Projects", "folder", "accounts.project"),
                    _page("API keys", "key", "accounts.apikey"),
                    _page("Rate limits", "speed", "accounts.ratelimit"),
                    _page("Members", "group", "accounts.member"),
                ],
            },
            {
                "title": "Catalog",
                "items": [
                    _page("Models", "deployed_code", "chatapi.servedmodel"),
                    _page("Deployments", "dns", "chatapi.deployment"),
                    _page("Prices", "sell", "usage.price"),
                    _page("Discounts", "percent", "usage.discount"),
                ],
            },
            {
                "title": "This admin",
                "items": [
                    _overall("Audit log", "history", "audit", "audit.auditentry"),
                    _page("Users", "person", "auth.user"),
                    _page("Groups", "groups", "auth.group"),
                ],
            },
        ]
    },
}
