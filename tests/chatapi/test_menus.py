"""Every page of the console and of the admin is in the menu, or below a page that is."""

import re
from html import unescape
from urllib.parse import urlsplit

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.urls import URLPattern, reverse

from chatapi.console import tenancy
from chatapi.console.urls import _of_organization
from chatapi.pages import admin_urls
from chatapi.pages.theme import THEME
from tests.admin_pages import client_of
from tests.chatapi.test_console_access import TABLE

SIDEBAR = {
    urlsplit(str(item["link"])).path for group in THEME["SIDEBAR"]["navigation"] for item in group["items"]
}
# Buttons of lists and forms lead to them.
BY_BUTTON = {
    "credit_grant", "credit_refund", "prices", "catalog_import", "catalog_export", "upstream_models",
}  # fmt: skip


def test_every_page_of_the_console_is_in_its_menu_or_below() -> None:
    routes = {str(route.name): str(route.pattern) for route in _of_organization}
    menu = {routes[page.name] for page in tenancy._PAGES}
    read = {name for name, (reader, _) in TABLE.items() if reader}
    apart = {name for name in read if re.split(r"[/.]", routes[name])[0] not in menu}
    # The first leads to the start, the switcher of projects to the second, the field at the top to the third.
    assert apart == {"home_of", "new_project", "search"}


def test_every_page_of_the_admin_is_in_its_menu_or_below() -> None:
    apart = {
        str(route.name)
        for route in admin_urls.urls()
        if "<" not in str(route.pattern)
        and not any(each in SIDEBAR for each in (f"/admin/{route.pattern}", f"/admin/{_above(route)}/"))
    }
    assert apart == BY_BUTTON


@pytest.mark.django_db
def test_a_page_of_the_admin_has_the_name_of_its_entry_in_the_menu() -> None:
    client = client_of(User.objects.create_superuser("operator"))
    differ: dict[str, str] = {}
    for group in THEME["SIDEBAR"]["navigation"]:
        for item in group["items"]:
            html = client.get(urlsplit(str(item["link"])).path).content.decode()
            title = unescape(re.search(r"<title>\s*(.*?)\s*\|", html, re.S)[1])  # type: ignore[index]
            differ |= {item["title"]: title} if item["title"] != title else {}
    assert not differ


def test_no_two_entries_of_the_admins_menu_share_an_icon() -> None:
    icons = [item["icon"] for group in THEME["SIDEBAR"]["navigation"] for item in group["items"]]
    assert len({*icons}) == len(icons) > 20


def _above(route: URLPattern) -> str:
    return str(route.pattern).partition("/")[0]


def test_every_list_of_the_admin_is_in_its_menu() -> None:
    names = {f"{model._meta.app_label}_{model._meta.model_name}" for model in admin.site._registry}
    apart = {name for name in names if reverse(f"admin:{name}_changelist") not in SIDEBAR}
    # Budgets and Requests are pages of their own, which lead to these.
    assert apart == {"usage_budget", "usage_budgetlimit", "usage_generation"}
