"""The admin's look: its name, its icon, links in tables, and the sidebar."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy
from django.utils.html import format_html
from django.utils.safestring import SafeString

from usage.payment import configuration


def link(url: str, text: str, label: str = "") -> SafeString:
    """Return a link in the theme's colour; `label` is its name for screen readers."""
    return format_html(
        '<a class="font-medium text-primary-600 dark:text-primary-500" href="{}" aria-label="{}">{}</a>',
        url,
        label or text,
        text,
    )


def _page(title: str, icon: str, model: str, is_on: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Return a sidebar entry for a model's list; icons are names of the Material Symbols font."""
    app, _, name = model.partition(".")

    def is_shown(request: HttpRequest) -> bool:
        return is_on() and any(request.user.has_perm(f"{app}.{act}_{name}") for act in ("view", "change"))

    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app}_{name}_changelist"),
        "permission": is_shown,
    }


def _overall(title: str, icon: str, name: str, model: str) -> dict[str, Any]:
    """Return a sidebar entry for another page, shown to people who may view rows of `model`."""
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
    "SITE_URL": reverse_lazy("front"),
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("chatapi/icon.svg")}
    ],
    # They add to the theme: contrast, accessible names, menus, dialogs and suggestions.
    "STYLES": [lambda request: static("chatapi/admin.css")],
    "SCRIPTS": [
        lambda request: static("chatapi/admin_components.js"),
        lambda request: static("chatapi/admin.js"),
        lambda request: static("chatapi/suggest.js"),
    ],
    # An object's history links to the audit log.
    "SHOW_HISTORY": lambda request: request.user.has_perm("audit.view_auditentry"),
    "SHOW_VIEW_ON_SITE": False,
    "SIDEBAR": {
        "navigation": [
            {
                "items": [
                    _overall("Overview", "monitoring", "index", "usage.hourlyusage"),
                    _overall("Live", "bolt", "live", "usage.generation"),
                    _overall("Requests", "receipt_long", "requests", "usage.generation"),
                    _overall("Audit log", "history", "audit", "audit.auditentry"),
                ]
            },
            {
                "title": "Usage",
                "items": [
                    _overall("Statements", "description", "statements", "usage.statement"),
                    _page("Ledger entries", "account_balance", "usage.ledgerentry"),
                    _page("Hourly usage", "bar_chart", "usage.hourlyusage"),
                    _page("Refused requests", "block", "usage.refusedrequests"),
                    _page("Credit", "wallet", "usage.credit"),
                    _page("Payments", "credit_card", "payment.payment", is_on=configuration.is_on),
                    _overall("Budgets", "savings", "budgets", "usage.budgetlimit"),
                ],
            },
            {
                "title": "Organization",
                "items": [
                    _page("Organizations", "domain", "accounts.organization"),
                    _page("Projects", "folder", "accounts.project"),
                    _page("API keys", "key", "accounts.apikey"),
                    _page("Rate limits", "speed", "accounts.ratelimit"),
                    _page("Stored responses", "inventory_2", "chatapi.storedresponse"),
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
                "title": "Administration",
                "items": [
                    _page("Events", "notifications", "usage.event"),
                    {
                        "title": "Mail",
                        "icon": "mail",
                        "link": reverse_lazy("admin:mail"),
                        "permission": lambda request: request.user.is_superuser,
                    },
                    {
                        **_page("Webhook endpoints", "webhook", "chatapi.webhookendpoint"),
                        # Roles of organizations have the permission, too, for the console.
                        "permission": "chatapi.pages.webhook_admin.may_see",
                    },
                    _page("Users", "person", "auth.user"),
                    _page("Groups", "groups", "auth.group"),
                    _page("Second factors", "fingerprint", "mfa.authenticator"),
                    _page("Identity providers", "badge", "sign_in.identityprovider"),
                    _page("E-mail domains", "alternate_email", "sign_in.emaildomain"),
                ],
            },
        ]
    },
}
