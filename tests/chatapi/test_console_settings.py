"""The console's settings: permissions, and that changes are checked and recorded."""

import re
from itertools import chain
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from accounts.audit.models import AuditEntry
from accounts.authentication import look_up
from accounts.models import APIKey, Organization, Project, Role, organizations
from accounts.sign_in import attempts
from chatapi.console.settings_pages import OrganizationForm, ProjectSettingsForm
from chatapi.models import ServedModel
from tests.admin_pages import client_of, page, text
from tests.cast import Person
from tests.chatapi.console_pages import as_role, url

pytestmark = pytest.mark.usefixtures("counting")


@pytest.fixture(autouse=True)
def served(small: ServedModel) -> None:
    """Serve models, which aliases and fallbacks name."""
    aliases = ["huge", *(f"alias-{number}" for number in range(9))]
    for pk, kind, names in (("large", "chat", aliases), ("vectors", "embeddings", [])):
        ServedModel.objects.create(
            pk=pk, kind=kind, aliases=names, context_window=8_192, max_output_tokens=1_024
        )


SENT: dict[str, Any] = {"name": "renamed", "stores_responses_days": "7", "stores_metadata": "on"}


NO_INLINES = {
    f"{name}-{part}": "0" for name in ("projects", "members") for part in ("TOTAL_FORMS", "INITIAL_FORMS")
}


def test_a_projects_settings_are_changed_and_recorded(alice: Person) -> None:
    client, page = as_role(alice, Role.ADMIN), url(alice, f"settings/projects/{alice.project.pk}")
    assert page in client.get(url(alice, "settings")).content.decode()
    names = {"model_aliases": "mine = small", "model_fallbacks": "mine = large, huge\n\nlarge=small"}
    assert client.post(page, SENT | names).status_code == 302
    row = Project.objects.get(pk=alice.project.pk)
    assert (row.name, row.stores_responses_days, row.stores_metadata, row.counts_end_users) == (
        "renamed", 7, True, False,
    )  # fmt: skip
    assert (row.model_aliases, row.models_mode, row.is_active) == (
        {"mine": "small"}, alice.project.models_mode, True,
    )  # fmt: skip
    assert (
        row.model_fallbacks == alice.caller.model_fallbacks == {"mine": ["large", "huge"], "large": ["small"]}
    )
    assert "mine = large, huge" in client.get(page).content.decode()
    assert AuditEntry.objects.get(object_type="accounts.project").actor_id == alice.user.pk


def test_a_projects_settings_say_what_the_organization_forbids(alice: Person) -> None:
    client, page = as_role(alice, Role.ADMIN), url(alice, f"settings/projects/{alice.project.pk}")
    assert "forbids" not in text(client.get(page))
    Organization.objects.update(forbids_stored_responses=True)
    assert "The organization forbids storing responses for days" in text(client.get(page))


def test_pages_of_the_projects_have_each_one_once(alice: Person) -> None:
    client, acme = client_of(alice.user), alice.project.organization
    Project.objects.bulk_create(Project(organization=acme, name=f"more {number:03}") for number in range(110))
    found, path = [], url(alice, "settings")
    while path:
        page = client.get(path)
        found.append([row.name for row, _ in page.context["projects_shown"]])
        path = page.context["older_url"]
    assert [len(names) for names in found] == [50, 50, 11]
    assert [*chain(*found)] == ["default", *(f"more {number:03}" for number in range(110))]
    assert page.context["newest_url"] == url(alice, "settings")


def test_a_project_is_found_by_a_part_of_its_name(alice: Person, charlie: Person) -> None:
    client, page, acme = client_of(alice.user), url(alice, "settings"), alice.project.organization
    assert "Find projects" not in text(client.get(page))  # a page has all of them
    Project.objects.bulk_create(Project(organization=acme, name=f"more {number:03}") for number in range(110))
    Project.objects.create(organization=charlie.project.organization, name="more 040 of another")
    Project.objects.filter(name="more 042").update(is_active=False)

    def found(query: str) -> list[str]:
        answer = client.get(f"{page}?{query}")
        assert 'aria-label="Find projects"' in answer.content.decode()
        return [row.name for row, _ in answer.context["projects_shown"]]

    assert found("q=E+04") == [f"more 04{number}" for number in (0, 1, 3, 4, 5, 6, 7, 8, 9)]
    older = client.get(f"{page}?q=more").context["older_url"]
    assert found(older.partition("?")[2])[0] == "more 051"
    assert found("q=nothing") == []
    assert "No project matches." in text(client.get(f"{page}?q=nothing"))
    assert "Null characters" in text(client.get(f"{page}?q=%00"), status=400)


@pytest.mark.parametrize("form", [OrganizationForm, ProjectSettingsForm])
def test_saving_leaves_what_others_changed_meanwhile(
    alice: Person, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, rows = as_role(alice, Role.OWNER), form.Meta.model.objects
    monkeypatch.setattr(form, "clean", lambda _: rows.update(is_active=False) and None)
    path = "settings" if form is OrganizationForm else f"settings/projects/{alice.project.pk}"
    client.post(url(alice, path), SENT | {"time_zone": "UTC"})
    assert rows.values_list("name", "is_active").get() == ("renamed", False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "<b>"},
        {"stores_responses_days": "31"},
        {"stores_responses_days": "-1"},
        {"model_aliases": "mine"},
        {"model_aliases": "mine = no-such-model"},
        {"model_aliases": "small = small"},
        {"model_fallbacks": "small"},
        {"model_fallbacks": "small ="},
        {"model_fallbacks": "small = small"},
        {"model_fallbacks": "small = large, large"},
        {"model_fallbacks": "small = no-such-model"},
        {"model_fallbacks": "no-such-model = small"},
        {"model_fallbacks": "small = vectors"},
        {"model_fallbacks": "vectors = small"},
        {"model_fallbacks": "small = large\nsmall = huge"},
        {"model_fallbacks": f"small = {', '.join(f'alias-{number}' for number in range(9))}"},
    ],
)
def test_wrong_settings_change_nothing(alice: Person, wrong: dict[str, str]) -> None:
    page = url(alice, f"settings/projects/{alice.project.pk}")
    answer = as_role(alice, Role.ADMIN).post(page, SENT | wrong)
    assert answer.status_code == 400
    assert 'class="error"' in answer.content.decode()
    assert Project.objects.get(pk=alice.project.pk).name == alice.project.name


def test_an_organization_has_a_bounded_number_of_projects(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = as_role(alice, Role.ADMIN)
    monkeypatch.setattr(organizations, "MAX_PROJECTS", 1)
    refused = client.post(url(alice, "projects/new"), {"name": "other"})
    assert "An organization has at most 1 projects." in text(refused)
    with pytest.raises(CommandError, match="at most 1 projects"):
        call_command("createkey", "--organization", "Acme", "--project", "other")
    assert Project.objects.get() == alice.project
    assert client.post(url(alice, f"settings/projects/{alice.project.pk}"), SENT).status_code == 302


def test_owners_change_their_organizations_settings_and_the_log_says_so(alice: Person) -> None:
    page = url(alice, "settings")
    sent = {"name": "Acme Inc", "time_zone": "Europe/Berlin", "default_dialect": "llama"}
    admin, owner = as_role(alice, Role.ADMIN), alice.project.organization_id
    assert "An owner can change" in text(admin.get(page))
    assert admin.post(page, sent).status_code == 403
    client = as_role(alice, Role.OWNER)
    for wrong in ({"time_zone": "Mars/Olympus"}, {"default_dialect": "klingon"}, {"name": "a/b"}):
        assert client.post(page, sent | wrong).status_code == 400, wrong
    assert Organization.objects.get(pk=owner).name == "Acme"
    assert client.post(page, sent | {"is_active": ""}).status_code == 302
    row = Organization.objects.get(pk=owner)
    assert (row.name, row.time_zone, row.default_dialect, row.is_active) == (*sent.values(), True)
    changes = AuditEntry.objects.filter(actor=alice.user.username).latest("id").changes
    assert changes["default_dialect"] == ["", "llama"]


@pytest.mark.parametrize("form", ["console", "admin"])
def test_an_owner_tries_few_names_and_none_that_differs_by_case_only(
    alice: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(attempts, "MAX_RENAMES", 2)
    client, pk = as_role(alice, Role.OWNER), alice.project.organization_id
    page = url(alice, "settings") if form == "console" else f"/admin/accounts/organization/{pk}/change/"
    sent = NO_INLINES | {"time_zone": "UTC"}
    assert "This name is taken." in client.post(page, sent | {"name": "UMBRELLA"}).content.decode()
    assert client.post(page, sent | {"name": "ACME"}).status_code == 302
    refused = client.post(page, sent | {"name": "other"})
    assert "Too many attempts. Try again in 10 min." in refused.content.decode()
    assert refused.status_code == (429 if form == "console" else 200)
    assert client.post(page, sent | {"name": "ACME"}).status_code == 302
    assert Organization.objects.get(pk=pk).name == "ACME"


def test_an_owner_does_not_deactivate_the_organization_in_the_admin(alice: Person) -> None:
    client, pk = as_role(alice, Role.OWNER), alice.project.organization_id
    sent = NO_INLINES | {"name": "Acme Inc", "time_zone": "UTC"}
    assert client.post(f"/admin/accounts/organization/{pk}/change/", sent).status_code == 302
    row = Organization.objects.get(pk=pk)
    assert (row.name, row.is_active) == ("Acme Inc", True)


def _opened(client: Client, path: str) -> dict[str, str]:
    """Return the hidden fields with the values that the page shows, which a browser sends, too."""
    hidden = r'<input type="hidden" name="([\w-]*initial-[\w-]+)"(?: value="([^"]*)")?'
    return dict(re.findall(hidden, client.get(path).content.decode()))


def test_a_form_opened_before_a_deactivation_does_not_undo_it(alice: Person, root: Client) -> None:
    row, project = alice.project.organization, alice.project
    sent = NO_INLINES | {"name": "renamed", "time_zone": "UTC", "is_active": "on"}
    sent |= {"projects-TOTAL_FORMS": "1", "projects-INITIAL_FORMS": "1", "projects-0-id": str(project.pk)}
    sent |= {"projects-0-organization": str(row.pk), "projects-0-is_active": "on"}
    opened = _opened(root, page(row))
    Organization.objects.update(is_active=False, time_zone="Asia/Tokyo")
    Project.objects.update(is_active=False)
    for project_name in ("default", "other"):
        assert root.post(page(row), sent | opened | {"projects-0-name": project_name}).status_code == 302
        row.refresh_from_db()
        project.refresh_from_db()
        assert (row.name, row.time_zone, row.is_active) == ("renamed", "Asia/Tokyo", False)
        assert (project.name, project.is_active) == (project_name, False)


def test_a_projects_page_changes_only_what_the_person_changed(alice: Person, root: Client) -> None:
    project = alice.project
    opened = _opened(root, page(project))
    assert opened["initial-is_active"] == "True"
    Project.objects.update(is_active=False, model_aliases={"mine": "small"}, models_mode="allow_list")
    sent = {"name": "renamed", "is_active": "on", "models_mode": "", "stores_responses_days": "0"}
    assert root.post(page(project), sent | opened).status_code == 302
    project.refresh_from_db()
    assert (project.name, project.is_active, project.models_mode, project.model_aliases) == (
        "renamed", False, "allow_list", {"mine": "small"},
    )  # fmt: skip
    Project.objects.update(is_active=True)
    assert root.post(page(project), sent | opened | {"is_active": ""}).status_code == 302
    project.refresh_from_db()
    assert not project.is_active


def test_the_organizations_dialect_is_that_of_keys_without_one(alice: Person) -> None:
    Organization.objects.update(default_dialect="llama")
    assert look_up(alice.key).default_dialect == "llama"
    APIKey.objects.update(default_dialect="openai")
    assert look_up(alice.key).default_dialect == "openai"


def test_a_new_key_has_the_dialect_that_was_chosen(alice: Person) -> None:
    sent = {"project": alice.project.pk, "name": "new", "default_dialect": "openai"}
    as_role(alice, Role.MEMBER).post(url(alice, "keys/new"), sent)
    assert APIKey.objects.get(name="new").default_dialect == "openai"
    client_of(alice.user).post(url(alice, "keys/new"), sent | {"name": "no", "default_dialect": "klingon"})
    assert not APIKey.objects.filter(name="no").exists()
