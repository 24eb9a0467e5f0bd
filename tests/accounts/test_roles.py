"""Members of organizations in the admin see only rows of their own, and change what their role permits."""

import re
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.forms.models import BaseModelForm
from django.test import Client
from django.urls import reverse

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts import access
from accounts.models import APIKey, Member, Organization, Project, RateLimit, Role
from accounts.sign_in import attempts
from tests.admin_pages import client_of, page
from tests.cast import Person, join, run
from usage.models import Budget, BudgetLimit, Generation, HourlyUsage, LedgerEntry

ROLES = [Role.OWNER, Role.ADMIN, Role.MEMBER, Role.VIEWER]
LISTS = ["accounts_organization", "accounts_project", "accounts_member", "accounts_apikey",
         "accounts_ratelimit", "usage_generation", "usage_ledgerentry", "usage_hourlyusage",
         "usage_refusedrequests", "usage_budget", "usage_budgetlimit",
         "usage_credit", "usage_discount"]  # fmt: skip


def colleague(acme: Organization, role: Role) -> Client:
    """Return a client of a new member of Acme with this role."""
    user = User.objects.create_user(f"some {role}")
    Member.objects.create(organization=acme, user=user, role=role)
    return client_of(user)


@pytest.fixture
def house(alice: Person, bob: Person, charlie: Person) -> None:
    """Make rows of every kind in both organizations."""
    for person in (alice, bob, charlie):
        run(person)
        RateLimit.objects.create(project=person.project, requests_per_minute=60)
        BudgetLimit.objects.create(
            scope="project", scope_id=person.project.pk, period="day", limit_nanodollars=10**9
        )
    for owner in (alice, charlie):
        organization = owner.project.organization
        RateLimit.objects.create(organization=organization, requests_per_minute=600)
        BudgetLimit.objects.create(
            scope="organization", scope_id=organization.pk, period="month", limit_nanodollars=10**10
        )


# ---- the door


def test_superusers_and_staff_are_operators_and_members_may_enter(alice: Person) -> None:
    staff = User.objects.create_user("clerk", is_staff=True)
    nobody = User.objects.create_user("nobody")
    away = User.objects.create_user("away", is_staff=True, is_active=False)
    root = User.objects.create_superuser("root")
    asked: list[Any] = [root, staff, alice.user, nobody, away, AnonymousUser()]
    assert [access.is_operator(user) for user in asked] == [True, True, False, False, False, False]
    assert [access.may_enter(user) for user in asked] == [True, True, True, False, False, False]


def test_membership_bounds_staff_but_not_a_superuser(alice: Person) -> None:
    for name, is_superuser in (("clerk", False), ("root", True)):
        user = User.objects.create_user(name, is_staff=True, is_superuser=is_superuser)
        user.user_permissions.add(Permission.objects.get(codename="view_price"))
        Member.objects.create(organization=alice.project.organization, user=user, role=Role.VIEWER)
        assert access.is_operator(user) == is_superuser
        assert user.has_perm("usage.view_price") == is_superuser


@pytest.mark.parametrize(
    "model",
    [
        Organization,
        Project,
        Member,
        APIKey,
        RateLimit,
        Generation,
        LedgerEntry,
        HourlyUsage,
        Budget,
        BudgetLimit,
    ],
)
def test_everyone_sees_their_own_and_nothing_else(
    house: None, alice: Person, charlie: Person, model: Any
) -> None:
    rows = model.objects.all()
    own, others = (set(access.seen_by(person.user, rows)) for person in (alice, charlie))
    assert own
    assert others
    assert own.isdisjoint(others)
    assert own | others == set(rows) == set(access.seen_by(User.objects.create_superuser("root"), rows))
    assert not access.seen_by(AnonymousUser(), rows).exists()


def test_a_role_counts_in_its_own_organization_only(house: None, alice: Person, charlie: Person) -> None:
    Member.objects.create(organization=charlie.project.organization, user=alice.user, role=Role.VIEWER)
    assert access.may(alice.user, "accounts.change_apikey", alice.api_key)
    assert not access.may(alice.user, "accounts.change_apikey", charlie.api_key)
    assert access.may(alice.user, "accounts.view_apikey", charlie.api_key)
    assert set(access.where_may(alice.user, "accounts.add_apikey", Project.objects.all())) == set(
        alice.project.organization.projects.all()
    )


# ---- lists, filters, searches and addresses


def test_no_list_names_another_organization(house: None, alice: Person) -> None:
    client = client_of(alice.user)
    for name, query in ((name, query) for name in LISTS for query in ("", "?q=Umbrella", "?q=charlie")):
        response = client.get(reverse(f"admin:{name}_changelist") + query)
        assert response.status_code in {200, 302}
        shown = response.content.decode().partition("<main")[2]
        # The search term itself is in its field and in the links of the filters.
        shown = re.sub(r'(value="|[?;]q=|q%3D)(Umbrella|charlie)\b', "", shown)
        assert not re.search("Umbrella|charlie", shown)


@pytest.mark.parametrize(
    "query",
    [
        "digest__startswith=a",
        "public__startswith=a",
        "project__organization__name__startswith=U",
        "project__organization__members__user__password__startswith=p",
        "project__api_keys__digest__startswith=a",
        "rate_limits__requests_per_minute=60",
    ],
)
def test_an_address_asks_for_nothing_that_the_filters_do_not_offer(
    house: None, alice: Person, query: str
) -> None:
    for client in (client_of(alice.user), client_of(User.objects.create_superuser("root"))):
        assert client.get(f"/admin/accounts/apikey/?{query}").status_code == 400


@pytest.mark.parametrize(
    "kind", sorted(f"{model._meta.app_label}/{model._meta.model_name}" for model in admin.site._registry)
)
@pytest.mark.parametrize("query", ["id__regex=a", "name__iregex=(a%2B)%2B$"])
def test_no_list_takes_a_pattern(house: None, alice: Person, kind: str, query: str) -> None:
    """On SQLite this process would match the pattern, which may take forever."""
    for client in (client_of(alice.user), client_of(User.objects.create_superuser("root"))):
        assert client.get(f"/admin/{kind}/?{query}").status_code == 400


@pytest.mark.parametrize(
    "address",
    [
        "usage/ledgerentry/?id__in=%s",
        "usage/ledgerentry/?id__gt=%s",
        "usage/credit/%s/change/",
        "accounts/apikey/?id__in=1,%s",
    ],
)
def test_a_number_that_no_column_can_hold_is_no_error_of_ours(
    house: None, alice: Person, address: str
) -> None:
    for client in (client_of(alice.user), client_of(User.objects.create_superuser("root"))):
        assert client.get(f"/admin/{address % ('9' * 20)}").status_code < 500


@pytest.mark.parametrize(
    "address",
    ["accounts/apikey/?q=%s" % ("a+" * 1_200), "auth/user/?q=%s" % ("a" * 201),
     "search/?s=a&page=9", "search/?s=a&page=x", "usage/generation/?admitted_at__year=-1"],
)  # fmt: skip
def test_an_address_that_asks_for_too_much_or_nonsense_is_a_bad_request(house: None, address: str) -> None:
    assert client_of(User.objects.create_superuser("root")).get(f"/admin/{address}").status_code == 400


NO_IDS = ["9" * 5_000, "9" * 20, "-9223372036854775809", "²", "a", "nan", "\0", "2026-11-01"]


@pytest.mark.parametrize("kind", ["accounts/project", "accounts/member", "accounts/apikey",
                                  "accounts/ratelimit", "usage/budgetlimit",
                                  "usage/discount", "chatapi/deployment"])  # fmt: skip
def test_a_form_with_the_id_of_no_row_chooses_none(house: None, kind: str) -> None:
    root = client_of(User.objects.create_superuser("root"))
    for value in NO_IDS:
        chosen = dict.fromkeys(["organization", "project", "api_key", "model"], value)
        assert root.get(f"/admin/{kind}/add/", chosen).status_code == 200
        assert root.post(f"/admin/{kind}/add/", chosen).status_code in (200, 400)


@pytest.mark.parametrize(
    "path",
    ["usage/ledgerentry/%s/history/", "usage/ledgerentry/%s/correct/", "chatapi/deployment/%s/test_one/"],
)
def test_the_way_to_a_page_of_what_is_no_row_is_no_error_of_ours(house: None, path: str) -> None:
    root = client_of(User.objects.create_superuser("root"))
    entry = LedgerEntry.objects.latest("id").pk
    for value in [*NO_IDS, "".join(chr(ord("٠") + int(digit)) for digit in str(entry))]:
        assert root.get(f"/admin/{path % quote(value)}").status_code < 500


def test_an_action_for_what_is_no_id_is_a_bad_request(house: None, alice: Person) -> None:
    form = {"action": "revoke_selected", "_selected_action": ["x"], "index": 0}
    assert client_of(alice.user).post("/admin/accounts/apikey/", form).status_code == 400


def test_filters_name_only_what_is_seen(house: None, alice: Person, charlie: Person) -> None:
    Member.objects.create(organization=charlie.project.organization, user=alice.user, role=Role.VIEWER)
    shown = client_of(alice.user).get("/admin/accounts/apikey/").content.decode()
    assert "Acme" in shown
    assert "Umbrella" in shown
    Member.objects.filter(user=alice.user, role=Role.VIEWER).delete()
    assert "Umbrella" not in client_of(alice.user).get("/admin/accounts/apikey/").content.decode()


@pytest.mark.parametrize(
    ("model", "field", "seen"), [("apikey", "project", "Acme"), ("ratelimit", "api_key", "alice")]
)
def test_autocompletion_offers_only_what_is_seen(
    house: None, alice: Person, model: str, field: str, seen: str
) -> None:
    query = {"app_label": "accounts", "model_name": model, "field_name": field, "term": ""}
    found = client_of(alice.user).get("/admin/autocomplete/", query).json()["results"]
    assert found
    assert all(seen in row["text"] or "bob" in row["text"] for row in found)


def test_the_page_of_another_organizations_row_is_that_of_none(
    house: None, alice: Person, charlie: Person
) -> None:
    client, theirs = client_of(alice.user), charlie.project.organization
    rows = [
        theirs,
        charlie.project,
        charlie.api_key,
        theirs.members.get(),
        RateLimit.objects.get(project=charlie.project),
    ]
    rows += [
        Generation.objects.get(api_key=charlie.api_key),
        LedgerEntry.objects.get(api_key=charlie.api_key),
    ]
    rows += [
        model.objects.filter(scope="project", scope_id=charlie.project.pk)[0]
        for model in (BudgetLimit, Budget)
    ]
    for row in rows:
        assert client.get(page(row)).status_code == 404, row
        assert client.post(page(row), {}).status_code in {403, 404}, row
        assert client.post(page(row, "delete"), {"post": "yes"}).status_code in {403, 404}, row
        assert type(row)._default_manager.filter(pk=row.pk).exists()


# ---- changes


def test_a_member_makes_keys_and_a_viewer_does_not(
    house: None, acme: Organization, alice: Person, charlie: Person
) -> None:
    for role, status in ((Role.MEMBER, 200), (Role.VIEWER, 403)):
        form = {"project": alice.project.pk, "name": f"of {role}", "expires_at_0": "", "expires_at_1": ""}
        assert colleague(acme, role).post("/admin/accounts/apikey/add/", form).status_code == status
        assert APIKey.objects.filter(name=f"of {role}").exists() == (status == 200)


def test_nobody_makes_a_key_for_another_organization(house: None, alice: Person, charlie: Person) -> None:
    Member.objects.create(organization=charlie.project.organization, user=alice.user, role=Role.VIEWER)
    for project in (charlie.project.pk, 10**9):
        form = {"project": project, "name": "sneaky", "expires_at_0": "", "expires_at_1": ""}
        answer = client_of(alice.user).post("/admin/accounts/apikey/add/", form)
        assert "That choice is not one of the available choices" in answer.content.decode()
    assert not APIKey.objects.filter(name="sneaky").exists()


def test_selected_rows_are_acted_on_only_where_the_role_allows(
    house: None, alice: Person, charlie: Person
) -> None:
    """Alice owns Acme and is a viewer of Umbrella: the keys of both are in her list."""
    Member.objects.create(organization=charlie.project.organization, user=alice.user, role=Role.VIEWER)
    client, chosen = client_of(alice.user), [alice.api_key.pk, charlie.api_key.pk]
    client.post("/admin/accounts/apikey/", {"action": "revoke_selected", "_selected_action": chosen})
    assert APIKey.objects.get(pk=alice.api_key.pk).revoked_at is not None
    assert APIKey.objects.get(pk=charlie.api_key.pk).revoked_at is None
    limits = RateLimit.objects.filter(project__in=[alice.project, charlie.project])
    delete = {"action": "delete_selected", "_selected_action": [row.pk for row in limits], "post": "yes"}
    client.post("/admin/accounts/ratelimit/", delete)
    assert RateLimit.objects.filter(project=charlie.project).exists()


def test_detail_actions_ask_about_the_row(house: None, alice: Person, charlie: Person) -> None:
    Member.objects.create(organization=charlie.project.organization, user=alice.user, role=Role.VIEWER)
    path = reverse("admin:accounts_apikey_revoke_one", args=[charlie.api_key.pk])
    assert client_of(alice.user).post(path, {"_form_submitted": "True"}).status_code == 403
    assert APIKey.objects.get(pk=charlie.api_key.pk).revoked_at is None


def test_projects_are_an_admins_to_make_in_their_own_organization(
    house: None, acme: Organization, charlie: Person
) -> None:
    for role in ROLES:
        form = {"organization": acme.pk, "name": f"of {role}", "is_active": "on"}
        colleague(acme, role).post("/admin/accounts/project/add/", form)
    assert set(acme.projects.filter(name__startswith="of ").values_list("name", flat=True)) == {
        "of owner",
        "of admin",
    }
    form = {"organization": charlie.project.organization_id, "name": "sneaky", "is_active": "on"}
    assert (
        client_of(User.objects.get(username="some owner"))
        .post("/admin/accounts/project/add/", form)
        .status_code
        == 200
    )
    assert not Project.objects.filter(name="sneaky").exists()


def test_a_project_stays_in_its_organization(house: None, alice: Person, charlie: Person) -> None:
    root = client_of(User.objects.create_superuser("root"))
    form = {"organization": charlie.project.organization_id, "name": "renamed", "is_active": "on"}
    assert root.post(page(alice.project), form).status_code == 302
    alice.project.refresh_from_db()
    assert (alice.project.name, alice.project.organization.name) == ("renamed", "Acme")


@pytest.mark.parametrize(
    ("of_key", "of_person", "changes"),
    [(Role.OWNER, Role.ADMIN, False), (Role.OWNER, Role.OWNER, True), (Role.ADMIN, Role.ADMIN, True)],
)
def test_a_project_is_archived_by_its_admin_keys_role_or_a_higher_one(
    acme: Organization, alice: Person, of_key: Role, of_person: Role, changes: bool
) -> None:
    alice.manage_as(of_key)
    client = colleague(acme, of_person)
    for is_active in (False, True):
        Project.objects.update(is_active=not is_active)
        form = {"name": f"now {is_active}"} | ({"is_active": "on"} if is_active else {})
        assert client.post(page(alice.project), form).status_code == 302
        row = Project.objects.get(pk=alice.project.pk)
        assert (row.name, row.is_active) == (f"now {is_active}", is_active if changes else not is_active)


def test_an_organization_that_is_renamed_stays_as_inactive_as_it_became(
    house: None, acme: Organization, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deactivate(form: Any) -> None:
        Organization.objects.filter(pk=acme.pk).update(is_active=False)

    monkeypatch.setattr(BaseModelForm, "clean", deactivate)
    monkeypatch.setattr(attempts, "count_rename", lambda _: 0)
    sent = {"name": "Acme Inc", "time_zone": "UTC"}
    sent |= {f"{name}-{of}_FORMS": "0" for name in ("projects", "members") for of in ("TOTAL", "INITIAL")}
    assert client_of(alice.user).post(page(acme), sent).status_code == 302
    acme.refresh_from_db()
    assert (acme.name, acme.is_active) == ("Acme Inc", False)


@pytest.mark.parametrize("role", ROLES)
def test_what_bounds_the_organization_is_the_operators(house: None, acme: Organization, role: Role) -> None:
    client = colleague(acme, role)
    assert client.get(page(acme)).status_code == 200
    renamed = client.post(page(acme), {"name": "Acme", "time_zone": "Pacific/Kiritimati"})
    assert (renamed.status_code == 403) == (role != Role.OWNER)
    assert (
        client.post("/admin/accounts/organization/add/", {"name": "Mine", "time_zone": "UTC"}).status_code
        == 403
    )
    for limit in (
        RateLimit.objects.get(organization=acme),
        BudgetLimit.objects.get(scope="organization", scope_id=acme.pk),
    ):
        assert client.get(page(limit)).status_code == 200
        assert (
            client.post(page(limit), {"requests_per_minute": "9", "limit_nanodollars": "9999"}).status_code
            == 403
        )
        assert client.post(page(limit, "delete"), {"post": "yes"}).status_code == 403


@pytest.mark.parametrize(
    ("role", "status"), [(Role.OWNER, 302), (Role.ADMIN, 302), (Role.MEMBER, 403), (Role.VIEWER, 403)]
)
def test_limits_of_projects_are_an_admins(
    house: None, acme: Organization, bob: Person, role: Role, status: int
) -> None:
    client = colleague(acme, role)
    limit = RateLimit.objects.get(project=bob.project)
    changed = {"project": bob.project.pk, "requests_per_minute": "5", "model": ""}
    assert client.post(page(limit), changed).status_code == status
    budget = {"api_key": bob.api_key.pk, "period": "month", "limit_nanodollars": "3"}
    assert client.post("/admin/usage/budgetlimit/add/", budget).status_code == status
    assert BudgetLimit.objects.filter(scope="key", scope_id=bob.api_key.pk).exists() == (status == 302)


def test_nobody_limits_their_organization_or_anothers_rows(
    house: None, acme: Organization, alice: Person, charlie: Person
) -> None:
    client = client_of(alice.user)
    before = (RateLimit.objects.count(), BudgetLimit.objects.count())
    for owner in (
        {"organization": acme.pk},
        {"project": charlie.project.pk},
        {"api_key": charlie.api_key.pk},
    ):
        rate, budget = (
            {"requests_per_day": "5", "model": "small"},
            {"period": "ever", "limit_nanodollars": "3"},
        )
        assert client.post("/admin/accounts/ratelimit/add/", owner | rate).status_code == 200
        assert client.post("/admin/usage/budgetlimit/add/", owner | budget).status_code == 200
    assert (RateLimit.objects.count(), BudgetLimit.objects.count()) == before


def test_what_is_the_installations_is_no_members(house: None, alice: Person) -> None:
    client = client_of(alice.user)
    for name in ("auth_user", "auth_group", "chatapi_servedmodel", "usage_price"):
        assert client.get(reverse(f"admin:{name}_changelist")).status_code == 403
        assert client.get(reverse(f"admin:{name}_add")).status_code == 403
    for name in ("usage_credit", "usage_discount"):
        assert client.get(reverse(f"admin:{name}_add")).status_code == 403


# ---- staff


def test_staff_that_may_change_people_cannot_rise(db: None) -> None:
    clerk, root = User.objects.create_user("clerk", is_staff=True), User.objects.create_superuser("root")
    clerk.user_permissions.add(
        *Permission.objects.filter(codename__in=["change_user", "change_group", "view_group", "add_group"])
    )
    client, before = client_of(clerk), root.password
    form = {
        "username": "clerk",
        "is_superuser": "on",
        "is_staff": "on",
        "is_active": "on",
        "date_joined_0": "2026-01-01",
    }
    client.post(page(clerk), form | {"date_joined_1": "00:00:00"})
    password = {
        "password1": "another-passphrase",
        "password2": "another-passphrase",
        "usable_password": "true",
    }
    assert client.post(f"/admin/auth/user/{root.pk}/password/", password).status_code == 403
    assert not User.objects.get(pk=clerk.pk).is_superuser
    assert User.objects.get(pk=root.pk).password == before


def test_staff_that_may_change_people_cannot_be_others_of_the_staff(db: None, alice: Person) -> None:
    clerk, colleague = (User.objects.create_user(name, is_staff=True) for name in ("clerk", "colleague"))
    clerk.user_permissions.add(*Permission.objects.filter(codename__in=["change_user", "view_user"]))
    password = {
        "password1": "another-passphrase",
        "password2": "another-passphrase",
        "usable_password": "true",
    }
    answers = [
        client_of(clerk).post(f"/admin/auth/user/{user.pk}/password/", password).status_code
        for user in (colleague, alice.user, clerk)
    ]
    assert answers == [403, 302, 302]
    assert not User.objects.get(pk=colleague.pk).check_password("another-passphrase")


def test_people_are_not_deleted(db: None, alice: Person) -> None:
    root = client_of(User.objects.create_superuser("root"))
    assert root.post(page(alice.user, "delete"), {"post": "yes"}).status_code == 403


def test_someone_whose_place_is_gone_is_shown_out_at_once(acme: Organization) -> None:
    user = join("dora", Role.ADMIN, acme, "default").user
    client = client_of(user)
    assert client.get("/admin/accounts/project/").status_code == 200
    Member.objects.filter(user=user).delete()
    assert client.get("/admin/accounts/project/").status_code == 302
