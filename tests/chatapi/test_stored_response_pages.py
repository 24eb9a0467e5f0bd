"""The pages of stored responses and of the project's setting: permissions, and the audit log."""

from datetime import timedelta

import pytest
from django.test import Client as Browser
from django.urls import reverse

from accounts.audit.models import AuditEntry
from accounts.models import Organization, Project, Role
from chatapi import response_store
from chatapi.models import StoredResponse
from chatapi.response_store import Content
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Finished, Started, Text, Usage
from tests.admin_pages import client_of, page
from tests.cast import Person, join, run
from usage.database.clock import database_now

pytestmark = pytest.mark.django_db

STATE = b'{"items":[{"type":"message","role":"user","content":"the question"}],"context":{}}'
ANSWER: list[AnyDelta] = [Started(), Text("the answer"), Finished("stop"), Usage(1, 1)]


@pytest.fixture
def row(alice: Person) -> StoredResponse:
    Project.objects.filter(pk=alice.project.pk).update(stores_responses_days=3)
    generation = run(alice)
    response_store.write(generation.pk, Content(STATE, [deltas.encode(ANSWER)]))
    response_store.write(generation.pk, Content(STATE, []))  # by another process: it changes nothing
    return StoredResponse.objects.get()


def content_url(row: StoredResponse) -> str:
    return reverse("admin:stored_response_content", args=[row.pk])


def browser_of(role: Role, acme: Organization) -> Browser:
    return client_of(join(f"some {role}", role, acme, "default").user)


def test_an_owner_reads_the_content_and_is_audited(row: StoredResponse, acme: Organization) -> None:
    shown = browser_of(Role.OWNER, acme).get(content_url(row)).content.decode()
    assert "the question" in shown
    assert "the answer" in shown
    entry = AuditEntry.objects.latest("id")
    assert (entry.actor, entry.action, entry.object_name) == ("some owner", "read", str(row))
    assert entry.organization_id == acme.pk
    assert "the" not in str(entry.changes)


def test_an_admin_sees_the_list_and_not_the_content(row: StoredResponse, acme: Organization) -> None:
    browser = browser_of(Role.ADMIN, acme)
    shown = browser.get(reverse("admin:chatapi_storedresponse_changelist")).content.decode()
    assert str(row) in shown
    assert content_url(row) not in shown
    assert content_url(row) not in browser.get(page(row)).content.decode()
    assert browser.get(content_url(row)).status_code == 403
    assert not AuditEntry.objects.filter(action="read").exists()


def test_content_that_can_not_be_decrypted_is_a_404(row: StoredResponse, acme: Organization) -> None:
    StoredResponse.objects.update(content=bytes(40))
    assert browser_of(Role.OWNER, acme).get(content_url(row)).status_code == 404


def test_content_is_bound_to_its_row(row: StoredResponse, alice: Person) -> None:
    other = run(alice)
    response_store.write(other.pk, Content(STATE, []))
    StoredResponse.objects.filter(pk=other.pk).update(content=row.content)
    assert response_store.decrypt(StoredResponse.objects.get(pk=other.pk)) is None


@pytest.mark.parametrize(("days", "is_allowed"), [("30", True), ("31", False), ("-1", False), ("", False)])
def test_an_admin_sets_the_days(acme: Organization, alice: Person, days: str, is_allowed: bool) -> None:
    browser = browser_of(Role.ADMIN, acme)
    form = {"name": alice.project.name, "is_active": "on", "stores_responses_days": days}
    browser.post(page(alice.project), form)
    assert Project.objects.get(pk=alice.project.pk).stores_responses_days == (30 if is_allowed else 0)
    changes = AuditEntry.objects.filter(object_type="accounts.project", action="changed")
    assert [entry.changes["stores_responses_days"] for entry in changes] == ([[0, 30]] if is_allowed else [])


def test_responses_are_deleted_when_their_organization_forbids_them(
    row: StoredResponse, alice: Person, acme: Organization
) -> None:
    other, caller, now = run(alice), alice.caller, database_now()
    assert response_store.find(caller, row.pk) is not None
    browser_of(Role.OWNER, acme).post(
        f"/console/{acme.pk}/settings",
        {"name": acme.name, "time_zone": "UTC", "forbids_stored_responses": "on"},
    )
    assert response_store.find(alice.caller, row.pk) is None
    response_store.write(other.pk, Content(STATE, []))
    assert not StoredResponse.objects.filter(pk=other.pk).exists()
    response_store.delete_expired(now, [None])
    assert not StoredResponse.objects.exists()


@pytest.mark.parametrize("is_new", [False, True])
def test_no_project_stores_what_its_organization_forbids(
    acme: Organization, alice: Person, root: Browser, is_new: bool
) -> None:
    Organization.objects.update(forbids_stored_responses=True)
    form = {"name": "sent", "is_active": "on", "stores_responses_days": "7", "organization": acme.pk}
    path = "/admin/accounts/project/add/" if is_new else page(alice.project)
    refused = root.post(path, form).content.decode()
    assert "Your organization forbids storing responses for days." in refused
    assert not Project.objects.filter(name="sent").exists()


def test_a_project_keeps_its_days_while_they_are_forbidden(
    row: StoredResponse, acme: Organization, alice: Person
) -> None:
    Organization.objects.update(forbids_stored_responses=True)
    browser, path = browser_of(Role.OWNER, acme), f"/console/{acme.pk}/settings"
    assert "a few minutes" in browser.get(path).content.decode()
    form = {"name": "renamed", "stores_responses_days": "3"}
    assert browser.post(f"{path}/projects/{alice.project.pk}", form).status_code == 302
    refused = browser.post(f"{path}/projects/{alice.project.pk}", form | {"stores_responses_days": "4"})
    assert refused.status_code == 400
    assert "Your organization forbids storing responses for days." in refused.content.decode()
    browser.post(path, {"name": acme.name, "time_zone": "UTC"})
    assert alice.caller.stores_responses_days == 3
    assert "3 days" in browser.get(path).content.decode()


def test_responses_are_deleted_when_their_days_are_over(row: StoredResponse) -> None:
    now = database_now()
    response_store.delete_expired(now + timedelta(days=2), [None])
    assert StoredResponse.objects.exists()
    response_store.delete_expired(now + timedelta(days=3), [None])
    assert not StoredResponse.objects.exists()


def test_an_organization_stores_so_much(
    row: StoredResponse, acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not response_store.is_full(acme.pk)
    assert not response_store.is_full(acme.pk + 1)
    for name, value in [("MAX_RESPONSES", 1), ("MAX_BYTES", row.size_bytes)]:
        with monkeypatch.context() as patch:
            patch.setattr(response_store, name, value)
            assert response_store.is_full(acme.pk)
