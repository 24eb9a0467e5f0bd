"""The admin's lists: filters for thousands of organizations, what is said where there is nothing, and how
dates are written.
"""

import re
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Permission, User

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import Member, Organization, RateLimit, Role
from chatapi.models import ServedModel
from tests.admin_pages import client_of, text
from tests.cast import Person, run
from usage.models import BudgetLimit, Credit, Discount

BY_ORGANIZATION = {
    "usage/generation": "organization",
    "usage/ledgerentry": "organization",
    "usage/hourlyusage": "organization",
    "accounts/project": "organization",
    "accounts/member": "organization",
    "accounts/apikey": "project__organization",
}


# ---- very many organizations


@pytest.mark.parametrize(("path", "name"), BY_ORGANIZATION.items())
def test_a_list_is_filtered_by_a_name_that_is_typed(
    root: Any, alice: Person, charlie: Person, path: str, name: str
) -> None:
    for person in (alice, charlie):
        run(person)
    acme, umbrella = (
        root.get(f"/admin/{path}/?{name}__name__exact={each}").context["cl"] for each in ("Acme", "Umbrella")
    )
    assert acme.queryset.exists()
    assert set(acme.queryset).isdisjoint(umbrella.queryset)
    assert not root.get(f"/admin/{path}/?{name}__name__exact=Acm").context["cl"].queryset.exists()


def test_the_filter_keeps_what_else_is_asked_and_shows_what_is_chosen(root: Any, alice: Person) -> None:
    organization = alice.project.organization
    for asked in (f"organization__id__exact={organization.pk}", "organization__name__exact=Acme"):
        page = root.get(f"/admin/accounts/project/?q=def&is_active__exact=1&{asked}").content.decode()
        (form,) = re.findall(r'<form method="get"[^>]*aria-label="By organization">.*?</form>', page, re.S)
        sent = dict(re.findall(r'name="(\w+)" value="(\w*)"', form))
        assert sent == {"q": "def", "is_active__exact": "1", "organization__name__exact": "Acme"}


def test_no_page_names_all_organizations(root: Any, alice: Person) -> None:
    Organization.objects.bulk_create(Organization(name=f"Company {number}") for number in range(300))
    forms = ["accounts/project/add", "accounts/member/add", "accounts/ratelimit/add", "accounts/apikey/add"]
    forms += ["usage/discount/add", "usage/budgetlimit/add", "credit/grant"]
    for path in [*BY_ORGANIZATION, *forms]:
        answer = root.get(f"/admin/{path}" + ("" if path == "credit/grant" else "/"))
        assert answer.status_code == 200, path
        assert "Company 250" not in answer.content.decode(), path


FOREIGN_KEYS = [
    ("accounts", "project", "organization"), ("accounts", "member", "organization"),
    ("accounts", "apikey", "project"), ("accounts", "ratelimit", "organization"),
    ("accounts", "ratelimit", "project"), ("accounts", "ratelimit", "api_key"),
    ("usage", "credit", "organization"), ("usage", "discount", "organization"),
    ("usage", "generation", "organization"), ("usage", "generation", "project"),
    ("usage", "generation", "api_key"), ("usage", "ledgerentry", "organization"),
]  # fmt: skip


@pytest.mark.parametrize(("app", "model", "field"), FOREIGN_KEYS)
def test_nobody_enumerates_other_organizations_by_searching(
    root: Any, alice: Person, charlie: Person, app: str, model: str, field: str
) -> None:
    query = {"app_label": app, "model_name": model, "field_name": field}
    address = "/admin/autocomplete/"
    everything = root.get(address, query).json()["results"]
    assert any("Umbrella" in row["text"] or "charlie" in row["text"] for row in everything)
    for term in ("", "Umbrella", "charlie", "U", str(charlie.project.organization_id)):
        assert "Umbrella" not in str(
            found := client_of(alice.user).get(address, query | {"term": term}).json()
        )
        assert "charlie" not in str(found)


def test_people_are_not_searched_for_by_members(alice: Person) -> None:
    query = {"app_label": "accounts", "model_name": "member", "field_name": "user"}
    assert client_of(alice.user).get("/admin/autocomplete/", query).status_code == 403
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename="view_generation"))
    organizations = {"app_label": "usage", "model_name": "credit", "field_name": "organization"}
    assert client_of(clerk).get("/admin/autocomplete/", organizations).status_code == 403


# ---- nothing, and what to do about it


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("usage/budgetlimit", "No budget limits. Add budget limit"),
        (
            "usage/credit",
            "No prepaid credit yet. Grant credit",
        ),
        ("accounts/ratelimit", "No rate limits. Add rate limit"),
        ("accounts/organization", "No organizations yet. An organization pays for its projects"),
        ("accounts/apikey", "No API keys yet. Clients need one to call the API. Add API key"),
        ("usage/ledgerentry", "No money has moved yet"),
        ("auth/group", "No groups yet. A group gives several operators the same permissions. Add group"),
    ],
)
def test_an_empty_list_says_what_it_is_for(root: Any, path: str, said: str) -> None:
    assert said in text(root.get(f"/admin/{path}/"))
    if path != "usage/ledgerentry":
        return
    assert "Nothing matches. Show all" in text(root.get(f"/admin/{path}/?kind__exact=grant"))


def test_people_that_may_not_add_see_no_call_to_add(alice: Person) -> None:
    RateLimit.objects.all().delete()
    viewer = User.objects.create_user("viewer")
    Member.objects.create(organization=alice.project.organization, user=viewer, role=Role.VIEWER)
    shown = text(client_of(viewer).get("/admin/accounts/ratelimit/"))
    assert "No rate limits." in shown
    assert "Add rate limit" not in shown


# ---- columns of numbers


def test_each_column_of_numbers_is_a_column_of_its_list() -> None:
    lists: Any = site._registry.values()
    named = [(admin, name) for admin in lists for name in admin.number_columns]
    assert len(named) > 20
    assert [(str(admin), name) for admin, name in named if name not in admin.list_display] == []


@pytest.mark.parametrize(
    ("path", "columns"),
    [
        ("accounts/ratelimit", {*RateLimit.NUMBERS}),
        ("accounts/organization", {"projects_count", "members_count", "spent"}),
        ("usage/discount", {"percent"}),
    ],
)
def test_columns_of_numbers_have_one_class(root: Any, alice: Person, path: str, columns: set[str]) -> None:
    RateLimit.objects.create(api_key=alice.api_key)
    organization = alice.project.organization
    Discount.objects.create(
        organization=organization, basis_points=10, effective_from=organization.created_at
    )
    page = root.get(f"/admin/{path}/").content.decode()
    assert set(re.findall(r'<th class="[^"]* column-(\w+) num ', page)) == columns
    assert set(re.findall(r'<td class="field-(\w+) num cell"', page)) == columns


# ---- words


def test_dates_are_written_as_everywhere_else(root: Any, alice: Person) -> None:
    created = alice.project.organization.created_at
    assert f"{created:%Y-%m-%d %H:%M}" in text(root.get("/admin/accounts/organization/"))


def test_the_first_cell_of_a_row_has_the_name_of_its_column(root: Any, alice: Person) -> None:
    labels = {
        path: re.findall(
            r'class="[\w-]+ (?:nowrap )?cell" data-label="([^"]+)"', root.get(path).content.decode()
        )
        for path in ("/admin/accounts/organization/", "/admin/accounts/apikey/")
    }
    assert labels["/admin/accounts/organization/"][0] == "Name"
    assert labels["/admin/accounts/apikey/"][:2] == ["Select record", "Name"]


def test_tokens_of_models_are_grouped_by_thousands(root: Any, small: ServedModel) -> None:
    ServedModel.objects.update(context_window=131_072, max_output_tokens=16_384)
    shown = text(root.get("/admin/chatapi/servedmodel/"))
    assert "131,072" in shown
    assert "16,384" in shown


def test_a_limit_of_a_key_is_a_keys_and_nothing_is_said_in_words(root: Any, alice: Person) -> None:
    limit = BudgetLimit.objects.create(
        scope="key", scope_id=alice.api_key.pk, period="day", soft_limit_nanodollars=1
    )
    run(alice)
    Credit.objects.all().delete()
    for path in ("usage/budgetlimit/", "usage/budget/", f"usage/budgetlimit/{limit.pk}/change/"):
        assert "Api Key" not in text(root.get(f"/admin/{path}"))
    assert "none" in text(root.get("/admin/usage/budgetlimit/"))
    assert "no limit" in text(root.get("/admin/usage/budget/"))


def test_an_organizations_page_leads_to_inviting_for_it(root: Any, alice: Person) -> None:
    home = f"/admin/accounts/organization/{alice.project.organization_id}"
    assert f"{home}/invite-member" in root.get(f"{home}/change/").content.decode()
    form = root.get(f"{home}/invite-member/", follow=True).content.decode()
    assert "Acme" in form
    assert (
        "Members" not in root.get("/admin/accounts/organization/add/").content.decode().partition("<main")[2]
    )


# ---- where one is, and what leads on


def test_a_project_leads_to_its_own_overview(root: Any, alice: Person) -> None:
    url = f'href="/admin/?project={alice.project.pk}&amp;group=key"'
    for path in ("", f"{alice.project.pk}/change/"):
        page = root.get(f"/admin/accounts/project/{path}").content.decode()
        assert page.count(url) == 1, path
    assert 'aria-label="Overview of default"' in root.get("/admin/accounts/project/").content.decode()
    assert "group=key" not in root.get("/admin/accounts/project/add/").content.decode()


def test_a_name_is_spelled_as_it_is(root: Any, small: ServedModel) -> None:
    assert "Models chevron_right small" in text(root.get("/admin/chatapi/servedmodel/small/change/"))


# ---- words of the theme that pages say otherwise


@pytest.mark.parametrize(
    ("path", "heading"),
    [
        ("accounts/apikey/", "API keys"),
        ("accounts/apikey/add/", "API keys chevron_right Add"),
        ("chatapi/servedmodel/", "Models"),
        ("usage/credit/", "Credit"),
    ],
)
def test_a_heading_names_no_package_and_offers_all_rows_only_to_a_search(
    root: Any, path: str, heading: str
) -> None:
    page = root.get(f"/admin/{path}").content.decode()
    (found,) = re.findall(r"<h1.*?</h1>", page, re.DOTALL)
    assert re.sub(r"<[^>]*>|\s+", " ", found).split() == heading.split()


def test_a_search_says_how_many_rows_it_found(root: Any, alice: Person) -> None:
    page = root.get("/admin/accounts/apikey/?q=alice").content.decode()
    (found,) = re.findall(r"<h1.*?</h1>", page, re.DOTALL)
    assert "1 result" in found
    assert "Show all" not in page


def test_a_list_whose_name_has_no_plural_counts_rows(root: Any, acme: Organization) -> None:
    Credit.objects.create(organization=acme)
    assert "1 row" in text(root.get("/admin/usage/credit/"))


def test_a_no_is_no_red_cross(root: Any, alice: Person) -> None:
    Credit.objects.create(organization=alice.project.organization)
    Organization.objects.create(name="Closed", is_active=False)
    # One of two organizations is not active; one of two people is no superuser.
    for path, yes, no in (("accounts/organization/", 1, 1), ("auth/user/", 1, 1), ("usage/credit/", 0, 0)):
        _, _, rows = root.get(f"/admin/{path}").content.decode().partition("<tbody")
        found = rows.partition("</table>")[0]
        assert (found.count('aria-label="Yes"'), found.count('aria-label="No"')) == (yes, no), path
        assert not re.search("close_small|(bg|text)-red", found), path


def test_filters_by_a_time_say_yes_and_no(root: Any, alice: Person) -> None:
    page = root.get("/admin/accounts/apikey/").content.decode()
    assert "Not empty" not in page
    (yes,) = re.findall(r'href="([^"]*revoked_at__isempty=0[^"]*)"[^>]*>\s*(?:<[^>]*>\s*)*Yes', page)
    assert not root.get(f"/admin/accounts/apikey/{yes}").context["cl"].result_list


def test_limits_are_written_like_all_numbers(root: Any, alice: Person) -> None:
    RateLimit.objects.create(project=alice.project, requests_per_minute=1_000)
    page = root.get("/admin/accounts/ratelimit/").content.decode()
    cells = re.findall(r'<td class="[^"]*field-(\w+_per_\w+)[^"]*"[^>]*>\s*(.*?)\s*</td>', page, re.DOTALL)
    assert dict(cells)["requests_per_minute"] == "1,000"
    assert dict(cells)["tokens_per_day"] == "–"
