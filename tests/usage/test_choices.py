"""Filters of pages where there are more organizations, projects, keys and people than a list can offer."""

import html
import re
from typing import Any

import pytest
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import Organization, Role
from tests.cast import Person, join, run
from usage.pages import filters

REQUESTS = "/admin/requests/"


@pytest.fixture
def hers(alice: Person) -> Client:
    client = Client()
    client.force_login(alice.user)
    return client


@pytest.fixture
def _crowd(alice: Person, bob: Person, charlie: Person, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a request of each person, and more rows of every kind than a list offers."""
    for person in (alice, bob, charlie):
        run(person)
    for name in ("Cyberdyne", "Tyrell"):
        join(name.lower(), Role.OWNER, Organization.objects.create(name=name), "default")
    monkeypatch.setattr(filters, "MAX_OPTIONS", 2)


def field(page: str, name: str) -> dict[str, str]:
    """Return the attributes of the field of that name."""
    (tag,) = re.findall(rf'<(?:input|select)[^>]* ?name="{name}"[^>]*>', page)
    return {key: html.unescape(value) for key, value in re.findall(r'([a-z-]+)="([^"]*)"', tag)}


def offered(client: Client, page: str, name: str, term: str) -> list[str]:
    """Return the suggestions of the field for this term."""
    answer = client.get(field(page, name)["data-suggest"] + f"&term={term}")
    return [each["text"] for each in answer.json()["results"]]


def shown(client: Client, query: str, status: int = 200) -> str:
    answer = client.get(f"{REQUESTS}?{query}")
    assert answer.status_code == status
    return answer.content.decode()


@pytest.mark.usefixtures("_crowd")
def test_names_are_typed_and_offered(root: Client, charlie: Person) -> None:
    page = shown(root, "")
    assert offered(root, page, "organization", "umb") == ["Umbrella"]
    assert offered(root, page, "project", "umb") == ["Umbrella / default"]
    assert offered(root, page, "key", "charl") == [str(charlie.api_key)]
    assert offered(root, root.get("/admin/audit/").content.decode(), "person", "tyr") == ["tyrell"]


@pytest.mark.usefixtures("_crowd")
def test_what_is_offered_is_found(root: Client, charlie: Person) -> None:
    own = charlie.api_key
    for name, row in {"organization": own.project.organization, "project": own.project, "key": own}.items():
        for text in (str(row), str(row.pk)):
            page = shown(root, f"{name}={text}")
            assert field(page, name)["value"] == str(row)
            assert "Umbrella / default" in page
            assert "Acme / " not in page
    assert root.get("/admin/", {"organization": "Umbrella"}).status_code == 200


@pytest.mark.usefixtures("_crowd")
def test_a_name_of_several_or_of_none_is_a_mistake(root: Client) -> None:
    for query in ("project=default", "organization=Nobody", "key=%00", "key=nothing (ck_live_)"):
        assert ", or several have the name." in shown(root, query, 400)


@pytest.mark.usefixtures("_crowd")
def test_people_of_organizations_find_their_own_only(hers: Client, alice: Person) -> None:
    assert field(shown(hers, "project=default"), "project")
    assert "chatcmpl-" in shown(hers, "project=default")
    for query in ("organization=Umbrella", "organization=Nobody", "project=Umbrella / default"):
        assert ", or several have the name." in shown(hers, query, 400)
