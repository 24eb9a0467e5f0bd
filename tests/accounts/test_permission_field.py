"""The permissions that the pages of groups and users offer, and their words for them."""

import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.test import Client, RequestFactory
from django.urls import reverse

from accounts import roles
from accounts.pages.permission_field import offered, words
from tests.admin_pages import client_of, page

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module", autouse=True)
def pages() -> None:
    """Load the URLconf, which registers the pages."""
    reverse("admin:index")


@pytest.fixture
def operator() -> Client:
    return client_of(User.objects.create_superuser("operator"))


def options(client: Client, url: str) -> list[str]:
    """Return the texts of the permissions that the form offers."""
    html = client.get(url).content.decode()
    return re.findall(r'<option value="\d+"[^>]*>([^<]*: [^<]*|[^<]*\|[^<]*)</option>', html)


def test_permissions_are_offered_in_the_words_of_the_pages(operator: Client) -> None:
    found = options(operator, reverse("admin:auth_group_add"))
    assert {"API keys: add", "Audit log: view", "Requests: stop", "Statements: view"} <= {*found}
    assert found == sorted(found, key=str.casefold)
    assert len(found) == len({*found}) == offered().count()
    assert not [each for each in found if "|" in each or "log entr" in each or "session" in each]


def offered_names() -> set[str]:
    return {f"{each.content_type.app_label}.{each.codename}" for each in offered()}


def test_every_permission_of_a_role_is_offered() -> None:
    names = offered_names()
    # The database has no row of these two, which no page of the admin asks for.
    without_row = {roles.ADMINISTER_KEYS, roles.ADMINISTER_SIGN_IN}
    assert set().union(*roles.PERMISSIONS.values()) - without_row <= names


# Permissions that buttons, the audit log, statements and the console check, and no page of a model does.
ASKED_ELSEWHERE = {
    *(f"accounts.{act}_certificate" for act in ("add", "change", "delete", "view")),
    "audit.view_auditentry",
    "chatapi.read_storedresponse",
    "payment.add_payment",
    "usage.add_ledgerentry",
    "usage.change_generation",
    "usage.delete_price",
    "usage.view_statement",
}


def test_what_its_page_refuses_to_everybody_is_not_offered() -> None:
    """Ask each page as a person with all permissions: superusers may do a little more without any."""
    person = User.objects.create_user("staff", is_staff=True)
    person.user_permissions.set(Permission.objects.all())
    request = RequestFactory().get("/")
    request.user = person
    granted = set()
    for model, its_page in admin.site._registry.items():
        app, name = model._meta.app_label, model._meta.model_name
        for act in ("add", "change", "delete", "view"):
            if getattr(its_page, f"has_{act}_permission")(request):
                granted.add(f"{app}.{act}_{name}")
    assert not granted & ASKED_ELSEWHERE
    assert offered_names() == granted | ASKED_ELSEWHERE


def opened(permission: Permission) -> list[str]:
    """Return the titles of the entries that the menu shows to a person with only this permission."""
    person = User.objects.create_user(f"with {permission.pk}", is_staff=True)
    person.user_permissions.set([permission])
    request = RequestFactory().get("/")
    request.user = person
    site: Any = admin.site
    return [
        item["title"]
        for group in site.get_sidebar_list(request)
        for item in group["items"]
        if item["has_permission"]
    ]


def test_permissions_are_named_like_the_entries_of_the_menu(settings: Any) -> None:
    settings.STRIPE_API_KEY = "sk_test_1"
    without_entry = set()
    for permission in offered().filter(codename__startswith="view_"):
        if titles := opened(permission):
            assert words(permission).casefold() == f"{' and '.join(titles)}: view".casefold()
        else:
            without_entry.add(words(permission))
    assert without_entry == {"Budgets of all periods: view", "Client certificates: view"}


def test_what_changes_budgets_is_named_like_their_entry() -> None:
    found = {words(each) for each in offered().filter(codename__endswith="_budgetlimit")}
    assert found == {f"Budgets: {act}" for act in ("add", "change", "delete", "view")}


@pytest.mark.parametrize("prefix", ["", "%20", "_2B"], ids=["plain", "space", "quoted plus"])
@pytest.mark.parametrize("kind", ["group", "user"])
def test_a_permission_that_is_not_offered_stays(operator: Client, kind: str, prefix: str) -> None:
    """Also at URLs with " 1" or "+1" for the id 1, at which Django finds the row, too."""
    internal = Permission.objects.get(codename="add_logentry")
    owner = Group.objects.create(name="old") if kind == "group" else User.objects.create_user("old")
    held = owner.permissions if isinstance(owner, Group) else owner.user_permissions
    held.add(internal)
    url = page(owner).replace(f"/{owner.pk}/", f"/{prefix}{owner.pk}/")
    form = operator.get(url).context["adminform"].form
    values = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    name = "permissions" if kind == "group" else "user_permissions"
    assert internal in form.fields[name].queryset
    sent: dict[str, object] = {
        key: value for key, value in values.items() if isinstance(value, str | bool) and value
    }
    sent |= {name: [internal.pk]}
    if kind == "user":
        sent |= {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    response = operator.post(url, sent)
    assert response.status_code == 302, response.context["adminform"].form.errors
    assert list(held.all()) == [internal]
