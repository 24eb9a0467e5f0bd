"""A member who sees two projects of an organization: everything about the second one leads to the second
one, though links without a project mean the first.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import APIKey, EndUser, Organization, Project, RateLimit, Role
from chatapi.models import Deployment, ServedModel
from tests.cast import PRICE, Person, admit, join, run
from tests.chatapi.console_pages import url
from tests.chatapi.test_limited_members import limited, pages
from usage.books import credit, prices
from usage.models import BudgetLimit, Generation, Outcome
from usage.rollups import refused_requests
from usage.rollups.refused_requests import Refusal

_LINK = r'(?:href|action|data-[a-z]+-url)="([^"]*)"'
# What is not of one organization.
_ELSEWHERE = re.compile(r"/console/(?:account|sign-out)|/docs|/static/|/account/|https?:|#")
# URLs that take a POST only, and those in which a script replaces a part.
_NO_PAGE = re.compile(r"/(?:ID|playground/code|playground/key|switch|revoke|end-previous)(?:\?|$)|KEY")

_FILTERED = (
    "live?model=second-model", "keys?q=zed", "requests?error=zed_error", "overview?group=key&days=30",
    "usage?group=model&model=second-model&days=30",
)  # fmt: skip


@pytest.fixture
def second(acme: Organization, alice: Person, small: ServedModel) -> Person:
    """Return the person of a project with rows of every kind, whose only model is "second-model". Alice's
    project comes first, has a request, and does not allow this model.
    """
    model = ServedModel.objects.create(id="second-model", context_window=1, max_output_tokens=1)
    Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
    prices.change(model.id, PRICE)
    zed = join("zed", Role.MEMBER, acme, "zzz")
    own = {"counts_end_users": True, "stores_metadata": True, "models_mode": "allow_list"}
    Project.objects.filter(pk=zed.project.pk).update(**own, listed_models=["second-model"])
    Project.objects.filter(pk=alice.project.pk).update(
        name="aaa", models_mode="deny_list", listed_models=["second-model"]
    )
    run(alice)
    end_user = EndUser.objects.create(project=zed.project, name="zed-person")
    for scope, scope_id in (
        ("project", zed.project.pk),
        ("project_user", zed.project.pk),
        ("key", zed.api_key.pk),
        ("end_user", end_user.pk),
    ):
        BudgetLimit.objects.create(scope=scope, scope_id=scope_id, period="month", limit_nanodollars=10**12)
    RateLimit.objects.create(project=zed.project, requests_per_minute=1_000)
    run(zed, model="second-model", end_user="zed-person")
    run(zed, model="second-model", outcome=Outcome.FAILED, error_code="zed_error")
    admit(zed, model="second-model")
    refused_requests.add(timezone.now(), [{Refusal(zed.api_key.pk, 429, "zed_code"): 3}])
    return zed


@pytest.fixture
def client(alice: Person, second: Person) -> Client:
    """Return a client of a member who sees both projects."""
    return limited(alice, Role.MEMBER, alice.project, second.project)


def own_pages(second: Person) -> set[str]:
    """Return the paths of all pages about the second project: of rows by their number, of others by it."""
    found = {url(second, path) for path in pages(second, model="second-model")}
    budgets = BudgetLimit.objects.exclude(scope="organization").values_list("pk", flat=True)
    rows = {url(second, f"budgets/{pk}") for pk in budgets}
    rows |= {path for path in found if re.search(r"/(?:requests/|keys/\d|budgets/\d)", path)}
    filtered = {url(second, page) for page in _FILTERED}
    return (
        rows
        | {f"{path}?project={second.project.pk}" for path in found - rows}
        | {f"{path}&project={second.project.pk}" for path in filtered}
    )


def opened(client: Client, second: Person) -> Iterator[tuple[str, Any]]:
    """Yield the path and the response of each page about the second project that is HTML."""
    for path in sorted(own_pages(second)):
        page: Any = client.get(path, follow=True)
        assert page.status_code == 200, path
        if not page.streaming and page["content-type"].startswith("text/html"):
            yield path, page


def links(page: Any, path: str) -> set[str]:
    """Return what the page links to, without the switcher's links to the other project."""
    html = page.content.decode()
    found = {each.replace("&amp;", "&") for each in re.findall(_LINK, html) if not _ELSEWHERE.match(each)}
    return {urljoin(path, each) for each in found - {link.url for link in page.context["projects"]}}


def test_all_links_of_the_second_project_name_it(client: Client, second: Person) -> None:
    wrong, count = [], 0
    for path, page in opened(client, second):
        for form in re.findall(r'<form method="get".*?</form>', page.content.decode(), re.DOTALL):
            assert 'name="project"' in form, path
        for link in links(page, path):
            query, count = parse_qs(urlsplit(link).query), count + 1
            if query.get("project") != [str(second.project.pk)] and "key" not in query:
                wrong.append(f"{path}: {link}")
    assert not wrong, "\n".join(wrong)
    assert count > 300


@pytest.mark.timeout(180)
def test_all_links_of_the_second_project_lead_to_its_pages(client: Client, second: Person) -> None:
    found = {path for path, _ in opened(client, second)}
    for path, page in opened(client, second):
        found |= {link for link in links(page, path) if not _NO_PAGE.search(link)}
    for link in found:
        page = client.get(link, follow=True)
        assert page.status_code == 200, link
        if page.context:
            assert page.context["console"].project == second.project, link


def test_links_to_requests_of_the_second_project_have_rows(client: Client, second: Person) -> None:
    row = Generation.objects.filter(project=second.project, end_user="zed-person").get()
    limit = BudgetLimit.objects.get(scope="key", scope_id=second.api_key.pk)
    for path in (f"requests/{row}", f"budgets/{limit.pk}", f"keys/{second.api_key.pk}"):
        listed = [link for link in links(client.get(url(second, path)), "") if "/requests?" in link]
        listed = [link for link in listed if urlsplit(link).query.count("=") > 1 or "key=" in link]
        assert listed, path
        for link in listed:
            assert client.get(link).context["page"].rows, link


def test_a_key_of_the_second_project_is_offered_its_models(client: Client, second: Person) -> None:
    for path in (f"keys/{second.api_key.pk}/change", f"keys/new?project={second.project.pk}"):
        form = client.get(url(second, path)).context["form"]
        assert [name for name, _ in form.fields["allowed_models"].choices] == ["second-model"], path
    sent = {"project": second.project.pk, "name": "new", "allowed_models": ["second-model"]}
    client.post(url(second, f"keys/new?project={second.project.pk}"), sent)
    assert APIKey.objects.get(name="new").project == second.project


def test_a_new_key_is_one_of_the_project_whose_models_it_is_offered(client: Client, second: Person) -> None:
    sent = {"project": second.project.pk, "name": "new"}
    refused = client.post(url(second, "keys/new"), sent).context["form"]
    assert refused.errors.keys() == {"project"}
    assert [str(row) for row in refused.fields["project"].queryset] == ["Acme / aaa"]


def test_the_playground_has_the_models_of_its_project(client: Client, second: Person) -> None:
    page = client.get(url(second, f"playground?project={second.project.pk}"))
    assert [offer.id for offer in page.context["models"]] == ["second-model"]
    assert page.context["console"].projects_for_keys == [second.project]
    assert "second-model" not in [o.id for o in client.get(url(second, "playground")).context["models"]]


def test_an_archived_project_gets_no_keys(client: Client, second: Person) -> None:
    Project.objects.filter(pk=second.project.pk).update(is_active=False)
    for name in ("keys/new", "playground"):
        page = client.get(url(second, f"{name}?project={second.project.pk}"))
        assert "The project zzz is archived" in page.content.decode(), name


def test_start_shows_the_steps_of_the_chosen_project(
    acme: Organization, client: Client, second: Person
) -> None:
    empty = Project.objects.create(organization=acme, name="zzzz")
    eve = limited(second, Role.VIEWER, second.project, empty)
    for project, expected in ((second.project, True), (empty, False)):
        page = eve.get(url(second, f"start?project={project.pk}"))
        assert [step.is_done for step in page.context["steps"]] == [expected, expected], project
        home = eve.get(url(second, f"?project={project.pk}"))
        assert home["location"].endswith(f"{'overview' if expected else 'start'}?project={project.pk}")
        over = eve.get(url(second, f"overview?project={project.pk}&model=none")).context
        assert over["has_requests"]() is expected


def test_without_credit_the_test_key_is_one_of_the_chosen_project(
    acme: Organization, client: Client, second: Person
) -> None:
    credit.require(acme)
    page = client.get(url(second, f"start?project={second.project.pk}"))
    assert f"project={second.project.pk}&" in page.context["no_credit"].test_key_url
