"""Members who see a single project: nothing of another project is on any page that they can open.

Each page is opened twice, before and after another project of the organization has rows of every kind, and
must not differ. Names and numbers of that project are canaries on top, on pages with random values.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.test import Client
from django.test.utils import override_script_prefix
from django.urls import resolve
from django.utils import timezone

from accounts import access, groups, keys
from accounts.models import APIKey, EndUser, GroupProject, Member, Organization, Project, RateLimit, Role
from chatapi.console import tenancy
from chatapi.models import Deployment, ServedModel
from chatapi.notifications import dispatch
from tests import page_paths
from tests.admin_pages import body, client_of
from tests.cast import PRICE, Person, admit, join, run
from tests.chatapi import test_access_matrix
from tests.chatapi.console_pages import as_role, url
from tests.chatapi.test_console_access import OF_PROJECTS, TABLE
from usage.books import outbox, prices
from usage.books.outbox import NewEvent
from usage.models import BudgetLimit, Event, EventKind, Generation, Outcome, SpendAlert
from usage.pricing import Tokens
from usage.rollups import refused_requests
from usage.rollups.refused_requests import Refusal

CANARY = re.compile(r"canary|7,?654,?3\d\d|876,?5\d\d|987,?6\d\d", re.IGNORECASE)
ROLES = [Role.VIEWER, Role.MEMBER]
# What differs between two answers by itself: tokens of forms, and times.
_CHANGING = re.compile(
    r'name="csrfmiddlewaretoken" value="[^"]+"|\d+ (?:s|min) ago|just now|nonce="[^"]+"'
    r"|T?\d\d(?::|%3A)\d\d(?:(?::|%3A)\d\d)?(?:\.\d+)?"
)
GROUPS = ("project", "model", "key", "outcome", "error", "metadata", "end_user")


def limited(person: Person, role: Role = Role.VIEWER, *projects: Project, by_group: bool = False) -> Client:
    """Return a client of a new member who sees these projects only, by default that of the person."""
    user = User.objects.create_user(f"eve {role}", email="eve@example.com", last_login=timezone.now())
    member = Member.objects.create(
        organization=person.project.organization, user=user, role=role, is_limited=True
    )
    if by_group:
        groups.create(member.organization_id, "own-group", [member], projects or [person.project])
    else:
        member.projects.set(projects or [person.project])
    return client_of(user)


@pytest.fixture
def own(acme: Organization, alice: Person, charlie: Person, small: ServedModel) -> Person:
    """Return the owner of the project that the member sees, which has rows of every kind."""
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True, stores_metadata=True)
    BudgetLimit.objects.create(
        scope="project", scope_id=alice.project.pk, period="month", limit_nanodollars=10**12
    )
    RateLimit.objects.create(project=alice.project, requests_per_minute=1_000)
    run(alice, end_user="own-person")
    run(alice, outcome=Outcome.FAILED, error_code="own_error")
    refused_requests.add(timezone.now(), [{Refusal(alice.api_key.pk, 429, "own_code"): 3}])
    return alice


def let_the_canaries_in(acme: Organization) -> Person:
    """Give another project, and the organization itself, rows of every kind; return the project's person."""
    model = ServedModel.objects.create(id="canary-model", context_window=1, max_output_tokens=1)
    Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
    prices.change(model.id, PRICE)
    other = join("canary-person", Role.MEMBER, acme, "canary-project")
    Project.objects.filter(pk=other.project.pk).update(counts_end_users=True, stores_metadata=True)
    Project.objects.filter(organization=acme).exclude(pk=other.project.pk).update(
        models_mode="deny_list", listed_models=["canary-model"]
    )
    User.objects.filter(pk=other.user.pk).update(email="canary@example.com", last_login=timezone.now())
    keys.create_key(other.project, name="canary-key")
    groups.create(acme.pk, "canary-group", [Member.objects.get(user=other.user)], [other.project])
    end_user = EndUser.objects.create(project=other.project, name="canary-end-user")
    for scope, scope_id, dollars in (
        ("organization", acme.pk, 876_501),
        ("project", other.project.pk, 876_502),
        ("key", other.api_key.pk, 876_503),
        ("org_user", acme.pk, 876_506),
        ("project_user", other.project.pk, 876_507),
        ("end_user", end_user.pk, 876_508),
    ):
        BudgetLimit.objects.create(
            scope=scope, scope_id=scope_id, period="month", limit_nanodollars=dollars * 10**9
        )
    for owner, number in (
        ({"organization": acme}, 987_601),
        ({"project": other.project}, 987_602),
        ({"api_key": other.api_key}, 987_603),
        ({"organization": acme, "each_end_user": True}, 987_604),
        ({"project": other.project, "each_end_user": True}, 987_605),
        ({"end_user": end_user}, 987_606),
    ):
        RateLimit.objects.create(requests_per_minute=number, **owner)
    for project in (None, *Project.objects.filter(organization=acme)):
        SpendAlert.objects.create(
            organization=acme, project=project, threshold_nanodollars=876_504 * 10**9,
            recipients=[other.user.pk],
        )  # fmt: skip
    used = Tokens(7_654_321, 7_654_322)
    run(other, model="canary-model", end_user="canary-end-user", tokens=used)
    run(other, tokens=used)  # of the model that both projects use
    run(other, outcome=Outcome.FAILED, error_code="canary_error", tokens=used, model="canary-model")
    admit(other, model="canary-model")
    refused_requests.add(timezone.now(), [{Refusal(other.api_key.pk, 429, "canary_code"): 7}])
    data = {"spent_usd": "876505", "usual_usd": "4"}
    subject = f"project/{other.project.pk}"
    outbox.write(timezone.now(), [NewEvent(EventKind.SPEND, acme.pk, subject, "2026-11-26", "", data)])
    return other


def pages(person: Person, model: str = "small") -> Iterator[str]:
    """Yield the paths of all pages that limited members may open, about the person's own rows."""
    limit = BudgetLimit.objects.get(scope="project", scope_id=person.project.pk)
    request = Generation.objects.filter(project=person.project).earliest("id")
    own_rows = {
        "file_format": "csv", "generation_id": request, "key_id": person.api_key.pk, "limit_id": limit.pk,
        "model": model,
    }  # fmt: skip
    for name, pattern in page_paths.routes("console/<int:organization_id>/"):
        if name in OF_PROJECTS and TABLE[name][0]:
            below = pattern.removeprefix("console/<int:organization_id>/")
            yield re.sub(r"<(?:\w+:)?(\w+)>", lambda part: str(own_rows[part[1]]), below)


def views(person: Person) -> Iterator[str]:
    """Yield the paths of these pages, and of their filters, searches and files."""
    yield from pages(person)
    for query in (f"days=30&group={group}&groups=1" for group in GROUPS):
        for name in ("overview", "usage", "usage.csv", "usage.ndjson"):
            yield f"{name}?{query}"
    for name in ("overview", "usage", "usage.csv", "requests", "requests.csv"):
        for query in ("model=canary-model", "error=canary_error", "end_user=canary-end-user"):
            yield f"{name}?{query}&days=30"
    for query in ("", "?sort=cost", "?outcome=any_error", "?time=settled&days=7"):
        for name in ("requests", "requests.csv", "requests.ndjson"):
            yield f"{name}{query}"
    for text in ("canary", "alice", "own-person", "a", f"{timezone.now():%Y-%m}"):
        yield f"search?q={text}"
    yield from ("keys?q=canary", "keys?q=alice", "live?model=canary-model")
    yield f"overview?key={person.api_key.pk}"


def shown(client: Client, path: str) -> tuple[int, str]:
    """Return the status and what the page shows, without what differs by itself."""
    response: Any = client.get(path, follow=True)
    return response.status_code, _CHANGING.sub("", body(response))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("role", "by_group"), [*((role, False) for role in ROLES), (Role.MEMBER, True)])
def test_no_page_shows_anything_of_another_project(
    acme: Organization, own: Person, role: Role, by_group: bool
) -> None:
    client = limited(own, role, by_group=by_group)
    before = {path: shown(client, url(own, path)) for path in views(own)}
    statuses = {path: status for path, (status, _) in before.items() if status != 200}
    refused = {resolve(url(own, path)).url_name for path in statuses}
    of_members = {name for name in OF_PROJECTS if TABLE[name][0] == "member"}
    assert refused == (of_members if role == Role.VIEWER else set()), statuses
    other = let_the_canaries_in(acme)
    wrong = []
    for path, page in before.items():
        now = shown(client, url(own, path))
        if now != page:
            lines = zip(page[1].splitlines(), now[1].splitlines(), strict=False)
            first = next((each for each in lines if each[0] != each[1]), ("", "more lines"))
            wrong.append(f"{path}: {first}")
        if "canary" not in path and (found := CANARY.search(now[1])):
            wrong.append(f"{path}: {found[0]}")
    assert not wrong, "\n".join(wrong)
    everything = client_of(own.user).get(url(own, "overview?group=project")).content.decode()
    assert CANARY.search(everything), "the canaries are there"
    assert other.project.organization_id == own.project.organization_id


def test_the_first_pages_of_an_empty_project_show_nothing_of_others(
    acme: Organization, alice: Person
) -> None:
    client = limited(alice, Role.MEMBER)
    paths = ("", "start", "overview", "usage", "requests", "live", "budgets", "keys/new", "playground")
    before = {path: shown(client, url(alice, path)) for path in paths}
    let_the_canaries_in(acme)
    assert {path: shown(client, url(alice, path)) for path in paths} == before


@pytest.mark.parametrize(("role", "by_group"), [*((role, False) for role in ROLES), (Role.MEMBER, True)])
def test_rows_of_another_project_look_like_rows_that_never_were(
    acme: Organization, own: Person, role: Role, by_group: bool
) -> None:
    client, other = limited(own, role, by_group=by_group), let_the_canaries_in(acme)
    theirs = run(other)
    limit = BudgetLimit.objects.get(scope="project", scope_id=other.project.pk)
    of_all = BudgetLimit.objects.get(scope="organization")
    changing = ("change", "rotate", "end-previous", "switch", "revoke")
    gets = [
        (f"requests/{theirs}", "requests/gen_" + "0" * 32),
        (f"keys/{other.api_key.pk}", "keys/999999999"),
        *((f"budgets/{each.pk}", "budgets/999999999") for each in (limit, of_all)),
        ("models/canary-model", "models/no-such-model"),
        *(
            (f"{page}?project={name}", f"{page}?project=unknown")
            for name in (other.project.pk, "canary-project")
            for page in ("start", "overview", "usage", "requests", "live", "keys", "budgets", "models")
        ),
        *((f"{page}?key={other.api_key.pk}", f"{page}?key=999999999") for page in ("overview", "usage.csv")),
        (f"budgets?after={limit.pk}", "budgets?after=999999999"),
    ]
    for path, unknown in gets:
        found = [client.get(url(own, each)) for each in (path, unknown)]
        assert [each.status_code for each in found] == [404, 404], path
        assert found[0].content == found[1].content, path
    # A name is none of the page's, whether a key has it or not.
    for name in ("canary-key", "no-such-key"):
        assert client.get(url(own, f"overview?key={name}")).status_code == 400
    expected = 404 if role == Role.MEMBER else 403
    for path in (*(f"keys/{other.api_key.pk}/{each}" for each in changing), "playground/key"):
        response = client.post(url(own, path), {"project": other.project.pk})
        assert response.status_code == (405 if path.endswith("change/") else expected), path
    before = APIKey.objects.count()
    client.post(url(own, "keys/new"), {"project": other.project.pk, "name": "mine"})
    assert APIKey.objects.count() == before


def test_all_links_of_their_pages_lead_somewhere(acme: Organization, own: Person) -> None:
    let_the_canaries_in(acme)
    client, wrong = limited(own, Role.MEMBER), set()
    for path in views(own):
        response: Any = client.get(url(own, path), follow=True)
        if response.streaming or not response["content-type"].startswith("text/html"):
            continue
        for link in re.findall(r'href="(/console/\d+/[^"#]*)', response.content.decode()):
            page = link.partition("?")[0]
            if page.endswith("/ID"):
                continue
            wrong.add(page)
    found = {page: client.get(page, follow=True).status_code for page in wrong}
    assert {page for page, status in found.items() if status != 200} == set()


def test_several_projects_are_seen_one_at_a_time(acme: Organization, own: Person) -> None:
    other = let_the_canaries_in(acme)
    third = join("third", Role.MEMBER, acme, "another")
    client = limited(own, Role.MEMBER, third.project, other.project)
    assert client.get(url(own, "overview")).context["console"].project == third.project
    page = client.get(url(own, f"keys/{other.api_key.pk}"))
    assert page.context["console"].project == other.project
    assert [link.text for link in page.context["projects"]] == ["another", "canary-project"]
    # A colleague's link names the key only.
    linked = client.get(url(own, f"overview?key={other.api_key.pk}&days=30"))
    assert linked.context["has_usage"]
    assert client.get(url(own, f"keys/{own.api_key.pk}")).status_code == 404
    assert client.get(url(own, f"overview?project={own.project.pk}")).status_code == 404


def test_without_a_project_they_see_nothing(acme: Organization, own: Person) -> None:
    client = limited(own)
    Member.objects.get(user__username="eve viewer").projects.clear()
    assert client.get(url(own, "overview")).status_code == 404
    home = client.get("/console/")
    assert (home.status_code, "Acme" in home.content.decode()) == (200, False)


def test_without_a_project_the_first_page_says_whom_to_ask(own: Person) -> None:
    client = limited(own)
    Member.objects.get(is_limited=True).projects.clear()
    shown = body(client.get("/console/"))
    assert "You see no project now: ask an owner of your organization for one." in shown
    assert "An operator creates the first one" not in shown


@pytest.mark.parametrize("by_group", [False, True])
def test_a_project_of_another_organization_shows_nothing(
    own: Person, charlie: Person, by_group: bool
) -> None:
    client = limited(own, Role.MEMBER, charlie.project if not by_group else own.project, by_group=by_group)
    # Rows that no form makes.
    GroupProject.objects.update(project=charlie.project)
    home = client.get("/console/")
    assert (home.status_code, "Acme" in home.content.decode()) == (200, False)
    assert client.get(url(own, "overview")).status_code == 404
    assert client.get(url(charlie, "overview")).status_code == 404


def test_an_archived_project_is_still_seen(own: Person) -> None:
    client = limited(own, Role.MEMBER)
    Project.objects.filter(pk=own.project.pk).update(is_active=False, models_mode="allow_list")
    page = client.get(url(own, "models"))
    assert page.context["console"].project == own.project
    assert page.context["offers"] == []


@pytest.mark.parametrize("role", [Role.ADMIN, Role.OWNER])
def test_only_viewers_and_members_are_limited(acme: Organization, role: Role) -> None:
    user = User.objects.create_user("eve")
    with pytest.raises(IntegrityError), transaction.atomic():
        Member.objects.create(organization=acme, user=user, role=role, is_limited=True)


# ---- the general door


def test_the_general_door_shows_a_limited_member_nothing(own: Person) -> None:
    limited(own, Role.MEMBER)
    eve = User.objects.get(username="eve member")
    organization_id = own.project.organization_id
    assert (access.role_in(eve, organization_id), access.organizations_of(eve)) == (None, ())
    assert not access.seen_by(eve, Project.objects.all()).exists()
    assert not access.where_may(eve, "usage.view_generation", Project.objects.all()).exists()
    assert not access.may_in(eve, "accounts.view_project", organization_id)
    assert (access.may_enter(eve), access.may_sign_in(eve)) == (False, True)
    assert access.may_in_projects(eve, "accounts.add_apikey", organization_id)
    assert not access.may_in_projects(eve, "accounts.view_member", organization_id)


def test_a_limit_bounds_staff_but_not_a_superuser(own: Person) -> None:
    limited(own)
    eve = User.objects.get(username="eve viewer")
    eve.is_staff = True
    assert (access.is_operator(eve), access.may_enter(eve)) == (False, False)
    eve.is_superuser = True
    assert (access.is_operator(eve), access.may_enter(eve)) == (True, True)


def test_the_admin_is_closed(acme: Organization, own: Person, bob: Person, small: ServedModel) -> None:
    RateLimit.objects.all().delete()
    BudgetLimit.objects.all().delete()
    house = test_access_matrix.House(acme, own, bob, small)
    client = limited(own, Role.MEMBER)
    for name, path in page_paths.of_admin(house).items():
        if name not in test_access_matrix.OPEN:
            assert client.get(path).status_code in (302, 403, 404), name
    page = client.get("/admin/", follow=True)
    assert page.redirect_chain[-1][0].startswith(f"/console/{acme.pk}/")
    assert "The admin is for people who see a whole organization." in page.content.decode()


def test_pages_of_the_whole_organization_are_closed_and_not_in_the_menu(own: Person) -> None:
    client = limited(own, Role.MEMBER)
    for name in ("settings", "members", "statements", "notifications", "credit", "webhooks", "audit"):
        assert client.get(url(own, name)).status_code == 403, name
    nav = client.get(url(own, "start")).context["nav"]
    assert [link.text for link in nav] == [
        "Start", "Overview", "Usage", "Requests", "Live", "API keys", "Budgets and limits", "Models",
        "Playground",
    ]  # fmt: skip
    assert [link.text for link in nav if link.is_current] == ["Start"]
    # Behind a proxy that gives the service a part of its paths.
    tenancy._keeps_to_projects.cache_clear()
    with override_script_prefix("/chat/"):
        behind = client.get(url(own, "start")).context["nav"]
    assert [link.url for link in behind] == [f"/chat{link.url}" for link in nav]


# ---- mail


def test_no_mail_of_the_organizations_events_goes_to_them(acme: Organization, own: Person) -> None:
    let_the_canaries_in(acme)
    client = limited(own, Role.MEMBER)
    eve = User.objects.get(username="eve member")
    event = Event.objects.get(kind=EventKind.SPEND)
    dispatch.prefer(eve, acme, dict.fromkeys(map(str, [EventKind.SPEND, EventKind.BUDGET]), True))
    assert eve not in dispatch._people(event)
    assert eve not in dispatch.mailable(acme.pk)
    assert client.get(url(own, "notifications")).status_code == 403
    SpendAlert.objects.update(recipients=[eve.pk])
    alerts = client_of(own.user).get(url(own, "budgets")).context["alerts"]
    assert [people for *_, people in alerts] == [[]] * 3


# ---- keys


def test_keys_tell_more_as_the_form_of_the_limit_says(acme: Organization, own: Person) -> None:
    let_the_canaries_in(acme)
    client = limited(own, Role.MEMBER)
    secret = client.post(url(own, "playground/key"), {"project": own.project.pk}).json()["key"]
    told = Client().get("/v1/key", headers={"authorization": f"Bearer {secret}"}).json()
    assert "organization" in {row["scope"] for row in told["budgets"]}
    form = as_role(own, Role.OWNER).get(url(own, "members/invite")).content.decode()
    page, heading = re.findall(r'href="(/docs[^"#]+)#(what-a-key-tells)"', form)[0]
    assert f'id="{heading}"' in client.get(page).content.decode()
