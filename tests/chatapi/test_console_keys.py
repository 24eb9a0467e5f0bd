"""Keys in the console: made, changed, rotated, disabled and revoked; the key of the playground."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from io import StringIO
from typing import Any
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from accounts import keys
from accounts.audit.models import AuditEntry
from accounts.authentication import look_up
from accounts.models import APIKey, Member, Organization, Project, RateLimit, Role
from chatapi.console import key_pages
from chatapi.models import ServedModel
from tests.admin_pages import client_of, text
from tests.cast import Person, is_let_in
from tests.chatapi.console_pages import as_role, url
from usage.models import BudgetLimit
from usage.notifications import watch
from usage.pricing import from_usd

SECRET = re.compile(r"ck_(?:live|test)_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}")


# ---- keys


@pytest.mark.parametrize("form", ["change", "rotate"])
def test_the_forms_of_a_key_lead_back_to_it(alice: Person, form: str) -> None:
    shown = client_of(alice.user).get(url(alice, f"keys/{alice.api_key.pk}/{form}"))
    back = f'href="{url(alice, f"keys/{alice.api_key.pk}")}"><span aria-hidden="true">‹</span>'
    assert back in shown.content.decode()


def test_a_key_is_made_with_its_limits_and_shown_once(alice: Person, small: ServedModel) -> None:
    client = as_role(alice, Role.ADMIN)
    sent = {
        "project": alice.project.pk, "name": "backend", "scopes": ["completions"],
        "allowed_models": ["small"],
        "requests_per_minute": "60", "tokens_per_minute": "", "budget": "$12.50", "period": "day",
        "expires_at": "2099-01-02T03:04",
    }  # fmt: skip
    response = client.post(url(alice, "keys/new"), sent)
    secret = SECRET.findall(response.content.decode())[0]
    row = APIKey.objects.get(name="backend")
    assert "no-store" in response["cache-control"]
    assert look_up(secret).api_key_id == row.pk
    assert (row.scopes, row.allowed_models, row.is_test, f"{row.expires_at:%Y-%m-%d %H:%M}") == (
        ["completions"], ["small"], False, "2099-01-02 03:04",
    )  # fmt: skip
    assert RateLimit.objects.get(api_key=row).requests_per_minute == 60
    limit = BudgetLimit.objects.get(scope="key", scope_id=row.pk)
    assert (limit.period, limit.limit_nanodollars) == ("day", from_usd("12.50"))
    shown = client.get(url(alice, f"keys/{row.pk}"))
    assert "this key: 60 requests per minute" in text(shown)
    assert f'href="{url(alice, f"budgets/{limit.pk}")}">this key, day</a>' in shown.content.decode()
    assert secret not in text(shown)


@pytest.mark.parametrize(
    ("zone", "never"), [("America/New_York", "9999-12-31T23:59"), ("Asia/Tokyo", "0001-01-01T00:00")]
)
def test_a_time_at_an_end_of_the_calendar_is_refused_in_words(
    alice: Person, small: ServedModel, zone: str, never: str
) -> None:
    Organization.objects.filter(pk=alice.project.organization_id).update(time_zone=zone)
    client = as_role(alice, Role.ADMIN)
    sent = {"project": alice.project.pk, "name": "for ever", "period": "day", "expires_at": never}
    assert "Choose a year from 1000 to 8999." in text(client.post(url(alice, "keys/new"), sent))
    row = APIKey.objects.get(pk=alice.api_key.pk)
    rotation = {"public": row.public, "overlap": "0", "until": never}
    refused = client.post(url(alice, f"keys/{row.pk}/rotate"), rotation)
    assert "Choose a year from 1000 to 8999." in text(refused)


def test_a_key_that_expires_in_an_hour_that_the_clock_shows_twice_is_changed(alice: Person) -> None:
    Organization.objects.filter(pk=alice.project.organization_id).update(time_zone="Europe/Berlin")
    for hour, name in enumerate(["first", "second"]):
        expires_at = datetime(2099, 10, 25, hour, 30, 7, tzinfo=UTC)  # 02:30 in Berlin, twice
        row, _ = keys.create_key(alice.project, name=name, expires_at=expires_at)
        path = url(alice, f"keys/{row.pk}/change")
        client = as_role(alice, Role.ADMIN)
        assert 'value="2099-10-25T02:30"' in client.get(path).content.decode()
        client.post(path, {"name": f"{name} one", "expires_at": "2099-10-25T02:30"})
        row.refresh_from_db()
        assert (row.name, row.expires_at) == (f"{name} one", expires_at)


def test_a_member_makes_keys_without_limits_and_no_admin_key(alice: Person, small: ServedModel) -> None:
    client = as_role(alice, Role.MEMBER)
    sent = {
        "project": alice.project.pk,
        "name": "mine",
        "requests_per_minute": "1",
        "budget": "1",
        "is_admin": "on",
    }
    assert SECRET.search(client.post(url(alice, "keys/new"), sent).content.decode())
    row = APIKey.objects.get(name="mine")
    assert not row.is_admin
    assert not RateLimit.objects.filter(api_key=row).exists()
    assert not BudgetLimit.objects.filter(scope="key", scope_id=row.pk).exists()
    for wrong in ({"scopes": ["management"]}, {"project": 999_999}, {"allowed_models": ["no-such"]}):
        answer = client.post(url(alice, "keys/new"), sent | {"name": "refused"} | wrong)
        assert SECRET.search(answer.content.decode()) is None
    assert not APIKey.objects.filter(name="refused").exists()


def test_no_key_is_made_if_its_budget_is_wrong(alice: Person, small: ServedModel) -> None:
    sent = {
        "project": alice.project.pk,
        "name": "half",
        "requests_per_minute": "5",
        "budget": "1e99",
        "period": "day",
    }
    assert 'class="error"' in as_role(alice, Role.OWNER).post(url(alice, "keys/new"), sent).content.decode()
    assert not APIKey.objects.filter(name="half").exists()


def test_a_rotated_key_has_two_secrets_until_the_old_one_ends(alice: Person, small: ServedModel) -> None:
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}")
    form = client.get(f"{page}/rotate").content.decode()
    public = re.findall(r'name="public" value="(\w+)"', form)[0]
    assert alice.key not in form
    response = client.post(f"{page}/rotate", {"public": public, "overlap": "3600"})
    assert "no-store" in response["cache-control"]
    secret = SECRET.findall(response.content.decode())[0]
    assert look_up(secret).api_key_id == look_up(alice.key).api_key_id == alice.api_key.pk
    assert "Old secret" in text(client.get(page))
    again = client.post(f"{page}/rotate", {"public": public, "overlap": "0"}, follow=True)
    assert "Nothing was changed: since this form was opened" in text(again)
    client.post(f"{page}/end-previous")
    assert [is_let_in(each) for each in (alice.key, secret)] == [False, True]


def test_a_keys_page_names_the_person_or_key_that_made_it(
    alice: Person, bob: Person, charlie: Person, root: Client
) -> None:
    reader = as_role(bob, Role.VIEWER)

    def made_by(row: APIKey, client: Client = reader) -> str:
        shown = text(client.get(url(alice, f"keys/{row.pk}")))
        return shown.partition(" Made by ")[2].partition(" Last request ")[0]

    theirs = {"action": "created", "object_type": "accounts.apikey", "object_id": str(alice.api_key.pk)}
    AuditEntry.objects.create(actor="charlie", organization_id=charlie.project.organization_id, **theirs)
    assert made_by(alice.api_key) == ""  # without an entry of the organization's audit log
    sent = {"project": alice.project.pk, "name": "mine"}
    as_role(alice, Role.MEMBER).post(url(alice, "keys/new"), sent)
    mine = APIKey.objects.get(name="mine")
    assert made_by(mine) == "alice"
    assert "Made by alice on" in text(root.get(f"/admin/accounts/apikey/{mine.pk}/change/"))
    path = f"/v1/organization/projects/{alice.project.pk}/service_accounts"
    made = json.loads(alice.manage_as("admin").send("POST", path, {"name": "backend"}).content)
    of_account = APIKey.objects.get(pk=made["api_key"]["id"])
    assert made_by(of_account) == f"API key alice ({alice.api_key.redacted})"
    Member.objects.filter(user=alice.user).delete()
    assert made_by(mine) == "somebody who is not a member"


def test_only_readers_of_the_audit_log_see_the_operators_name_on_a_key(
    alice: Person, bob: Person, root: Client
) -> None:
    root.post(url(alice, "keys/new"), {"project": alice.project.pk, "name": "from the operator"})
    names = ("--organization", str(alice.project.organization), "--project", "default")
    call_command("createkey", *names, "--name", "by command", stdout=StringIO())
    readers = as_role(bob, Role.ADMIN), as_role(alice, Role.OWNER)
    for name, hidden, shown in (
        ("from the operator", "somebody who is not a member", "root"),
        ("by command", "the operator", "manage.py createkey"),
    ):
        row = APIKey.objects.get(name=name)
        pages = [text(each.get(url(alice, f"keys/{row.pk}"))) for each in readers]
        assert [f"Made by {hidden}" in each for each in pages] == [True, False]
        assert [f"Made by {shown}" in each for each in pages] == [False, True]


def test_the_end_of_an_old_secret_is_in_the_organizations_time_zone(alice: Person) -> None:
    Organization.objects.update(time_zone="Asia/Tokyo")
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}/rotate")
    assert "or at this time (Asia/Tokyo)" in text(client.get(page))
    alice.api_key.refresh_from_db()
    sent = {"public": alice.api_key.public, "overlap": "0", "until": "2099-01-02T03:04"}
    assert "works until 2099-01-02 03:04 JST" in text(client.post(page, sent))
    alice.api_key.refresh_from_db()
    assert f"{alice.api_key.previous_expires_at:%Y-%m-%d %H:%M}" == "2099-01-01 18:04"


@pytest.mark.parametrize(
    ("owner", "status"), [(Project, "project archived"), (Organization, "organization inactive")]
)
def test_the_status_of_a_key_names_the_owner_that_is_off(alice: Person, owner: Any, status: str) -> None:
    owner.objects.update(is_active=False)
    for page in ("keys", f"keys/{alice.api_key.pk}"):
        assert status in text(as_role(alice, Role.OWNER).get(url(alice, page)))


def test_a_disabled_key_works_again_when_it_is_enabled(alice: Person) -> None:
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}")
    client.post(f"{page}/switch")
    assert not is_let_in(alice.key)
    assert "disabled" in text(client.get(page))
    client.post(f"{page}/switch", {"is_active": "yes"})
    assert is_let_in(alice.key)


@pytest.mark.parametrize(("left", "is_named"), [(timedelta(hours=1), True), (-timedelta(hours=1), False)])
def test_only_an_old_secret_that_works_is_said_to_end(alice: Person, left: timedelta, is_named: bool) -> None:
    values = {"previous_public": "old", "previous_digest": "x", "previous_expires_at": timezone.now() + left}
    APIKey.objects.filter(pk=alice.api_key.pk).update(**values)
    page = as_role(alice, Role.MEMBER).get(url(alice, f"keys/{alice.api_key.pk}/rotate"))
    assert ("The secret before that one" in text(page)) == is_named


def test_a_revoked_key_cannot_be_rotated_or_enabled(alice: Person) -> None:
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}")
    client.post(f"{page}/switch")
    client.post(f"{page}/revoke")
    assert "Rotate" not in text(client.get(page))
    assert "A revoked key" in text(client.get(f"{page}/rotate", follow=True))
    enabled = text(client.post(f"{page}/switch", {"is_active": "yes"}, follow=True))
    assert "A revoked key" in enabled
    assert "is enabled" not in enabled


def test_only_administrators_revoke_an_admin_key(alice: Person, bob: Person) -> None:
    APIKey.objects.filter(pk=bob.api_key.pk).update(is_admin=True, manages_as="owner")
    path = url(alice, f"keys/{bob.api_key.pk}/revoke")
    for role in (Role.MEMBER, Role.ADMIN):
        for change in ("change", "rotate", "end-previous", "switch", "revoke"):
            assert as_role(alice, role).post(f"{path.removesuffix('revoke')}{change}").status_code == 403
    assert is_let_in(bob.key)
    assert as_role(alice, Role.OWNER).post(path).status_code == 302
    assert APIKey.objects.get(pk=bob.api_key.pk).revoked_at is not None


def test_a_keys_name_rights_and_expiry_change_and_the_audit_log_has_it(
    alice: Person, small: ServedModel
) -> None:
    Organization.objects.update(time_zone="Asia/Tokyo")
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}")
    assert f'href="{page}/change"' in client.get(page).content.decode()
    sent = {"name": "backend", "scopes": ["models", "completions"], "allowed_models": ["small"]}
    sent |= {"default_dialect": "bitseek", "expires_at": "2099-01-02T03:04"}
    sent |= {"allowed_ips": "127.0.0.1/32\n2001:DB8::/32\n"}
    assert "The key backend is changed." in text(client.post(f"{page}/change", sent, follow=True))
    row = APIKey.objects.get(pk=alice.api_key.pk)
    assert (row.name, row.scopes, row.allowed_models) == ("backend", ["models", "completions"], ["small"])
    assert (row.default_dialect, f"{row.expires_at:%Y-%m-%d %H:%M}") == ("bitseek", "2099-01-01 18:04")
    assert is_let_in(alice.key)
    entry = AuditEntry.objects.filter(action="changed", object_id=str(row.pk)).latest("pk")
    rest = {"name", "scopes", "allowed_models", "default_dialect", "expires_at"}
    assert set(entry.changes) == {*rest, "allowed_ips"}
    assert entry.changes["allowed_ips"] == [[], ["127.0.0.1", "2001:db8::/32"]]
    assert entry.actor == alice.user.username


def test_a_changed_key_keeps_what_the_form_does_not_offer(alice: Person, small: ServedModel) -> None:
    moment = timezone.now().replace(microsecond=17) + timedelta(days=9)
    kept = {"scopes": ["usage", "models"], "allowed_models": ["gone", "small"], "expires_at": moment}
    kept |= {"allowed_ips": ["10.0.0.0/8"]}  # a form that was opened before it had this field
    APIKey.objects.filter(pk=alice.api_key.pk).update(**kept)
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}/change")
    form = client.get(page).content.decode()
    assert "gone (not offered now)" in form
    assert "management – " not in form
    keys.rotate(APIKey.objects.get(pk=alice.api_key.pk), None)
    sent = {name: kept[name] for name in ("scopes", "allowed_models")}
    local = timezone.localtime(moment, ZoneInfo(alice.project.organization.time_zone))
    client.post(page, {**sent, "name": "renamed", "expires_at": f"{local:%Y-%m-%dT%H:%M}"})
    row = APIKey.objects.get(pk=alice.api_key.pk)
    assert {name: getattr(row, name) for name in kept} == kept
    assert row.name == "renamed"
    assert not is_let_in(alice.key), "the rotation holds"


@pytest.mark.parametrize(
    "wrong",
    [{"name": ""}, {"scopes": ["management"]}, {"allowed_models": ["others"]}, {"expires_at": "soon"}],
    ids=str,
)
def test_a_wrong_change_of_a_key_names_its_field_and_changes_nothing(
    alice: Person, small: ServedModel, wrong: dict[str, Any]
) -> None:
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}/change")
    before = APIKey.objects.filter(pk=alice.api_key.pk).values().get()
    answer = client.post(page, {"name": "backend", **wrong})
    assert answer.status_code == 400
    assert 'class="error"' in answer.content.decode()
    assert "Back to alice" in text(answer, 400)
    assert APIKey.objects.filter(pk=alice.api_key.pk).values().get() == before


def test_a_keys_addresses_are_entered_by_line_and_shown(alice: Person, small: ServedModel) -> None:
    client = Client(REMOTE_ADDR="::ffff:203.0.113.7")
    client.force_login(alice.user)
    own = url(alice, f"keys/{alice.api_key.pk}")
    assert "Allowed from every IP address" in text(client.get(own))
    for path in (f"{own}/change", url(alice, "keys/new")):
        assert "You are at 203.0.113.7." in text(client.get(path))
    client.post(f"{own}/change", {"name": "alice", "allowed_ips": "203.0.113.7\r\n10.0.0.0/8"})
    assert "Allowed from 203.0.113.7, 10.0.0.0/8" in text(client.get(own))
    assert ">\n203.0.113.7\n10.0.0.0/8</textarea>" in client.get(f"{own}/change").content.decode()
    sent = {"project": alice.project.pk, "name": "listed", "period": "day", "allowed_ips": "0.0.0.0/0"}
    assert SECRET.search(client.post(url(alice, "keys/new"), sent).content.decode())
    assert APIKey.objects.get(name="listed").allowed_ips == ["0.0.0.0/0"]
    client.post(f"{own}/change", {"name": "alice", "allowed_ips": ""})
    assert APIKey.objects.get(pk=alice.api_key.pk).allowed_ips == []


def test_a_wrong_address_is_named_and_stays_in_the_form(alice: Person, small: ServedModel) -> None:
    client, path = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}/change")
    answer = client.post(path, {"name": "alice", "allowed_ips": "10.0.0.1\n10.0.0.5/8"})
    shown = text(answer, 400)
    assert "Write 10.0.0.0/8 for the network, or 10.0.0.5 for the address." in shown
    assert "10.0.0.1 10.0.0.5/8" in shown
    assert APIKey.objects.get(pk=alice.api_key.pk).allowed_ips == []


def test_a_revoked_key_cannot_be_changed(alice: Person) -> None:
    client, page = as_role(alice, Role.MEMBER), url(alice, f"keys/{alice.api_key.pk}")
    client.post(f"{page}/revoke")
    answer = client.post(f"{page}/change", {"name": "again"}, follow=True)
    assert "A revoked key" in text(answer)
    assert not APIKey.objects.filter(name="again").exists()


# ---- finding keys


def test_a_name_on_the_second_page_is_found_and_the_links_keep_the_search(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_pages, "PAGE", 2)
    for number in range(5):
        keys.create_key(alice.project, name=f"Backend {number}")
    client, found = client_of(alice.user), []
    at = url(alice, f"keys?q=backend&status=active&project={alice.project.pk}")
    while at:
        page = client.get(at)
        found.append([row.name for row, _, _ in page.context["keys"]])
        at = page.context["older_url"]
    assert found == [["Backend 4", "Backend 3"], ["Backend 2", "Backend 1"], ["Backend 0"]]
    first = parse_qs(urlsplit(page.context["newest_url"]).query)
    assert first == {"q": ["backend"], "status": ["active"], "project": [str(alice.project.pk)]}
    shown = page.content.decode()
    assert 'name="q" value="backend"' in shown
    assert f'href="{url(alice, f"overview?group=key&amp;days=30&amp;project={alice.project.pk}")}"' in shown


def test_a_key_is_found_by_what_pages_show_of_it(alice: Person, bob: Person) -> None:
    client, row = client_of(alice.user), bob.api_key
    keys.rotate(row, timezone.now() + timedelta(hours=1))
    for asked in (row.redacted, str(row.previous_redacted), row.public[:4], "bob"):
        page = client.get(url(alice, "keys"), {"q": asked})
        assert [each.pk for each, _, _ in page.context["keys"]] == [row.pk], asked


def test_keys_are_found_by_their_status(alice: Person) -> None:
    now = timezone.now()
    past = now - timedelta(hours=1)
    archived = Project.objects.create(organization=alice.project.organization, name="old", is_active=False)
    changed: dict[str, dict[str, Any]] = {
        "disabled": {"is_active": False},
        "expired": {"expires_at": past, "is_active": False},
        "expires": {"expires_at": now + timedelta(hours=1)},
        "revoked": {"expires_at": past, "revoked_at": past},
    }
    for name, changes in changed.items():
        row, _ = keys.create_key(alice.project, name=name)
        APIKey.objects.filter(pk=row.pk).update(**changes)
    keys.create_key(archived, name="project archived")
    client, rows = client_of(alice.user), APIKey.objects.select_related("project__organization")
    for status in ("active", "disabled", "expired", "revoked", "project archived"):
        page = client.get(url(alice, "keys"), {"status": status})
        expected = {row.name for row in rows if keys.status(row, now) == status}
        assert {row.name for row, _, _ in page.context["keys"]} == expected != set()
    assert "'gone' is none of active" in unescape(text(client.get(url(alice, "keys?status=gone")), 400))


def test_a_search_without_keys_says_how_to_see_all(alice: Person, charlie: Person) -> None:
    page = client_of(alice.user).get(url(alice, "keys?q=charlie"))
    assert "No API key matches. Show all ." in text(page)
    assert f'<a href="{url(alice, "keys")}">Show all</a>' in page.content.decode()


# ---- the playground's key


def test_the_playground_keeps_one_short_lived_key_for_each_session(alice: Person) -> None:
    client, other = as_role(alice, Role.MEMBER), client_of(alice.user)
    sent = {"project": alice.project.pk}

    def secret_of(client: Client) -> str:
        answer = client.post(url(alice, "playground/key"), sent)
        assert "no-store" in answer["cache-control"]
        return str(answer.json()["key"])

    first, second, others = secret_of(client), secret_of(client), secret_of(other)
    rows = APIKey.objects.filter(name="playground")
    assert rows.count() == 2
    assert [is_let_in(each) for each in (first, second, others)] == [False, True, True]
    row = rows.get(pk=look_up(second).api_key_id)
    assert row.expires_at is not None
    assert timedelta(minutes=14) < row.expires_at - timezone.now() <= timedelta(minutes=15)
    assert set(row.scopes) == {"completions", "generations"}
    assert second not in str(dict(client.session))
    rows.filter(pk=row.pk).update(expires_at=timezone.now() - timedelta(hours=1))
    assert is_let_in(secret_of(client))
    rows.update(revoked_at=timezone.now())
    assert is_let_in(secret_of(client))
    assert rows.count() == 3


def test_a_key_of_the_playground_is_never_announced_as_expiring(alice: Person) -> None:
    client, sent = as_role(alice, Role.MEMBER), {"project": alice.project.pk}
    client.post(url(alice, "playground/key"), sent)
    rows, age = APIKey.objects.filter(name="playground"), timedelta(hours=23, minutes=50)
    rows.update(created_at=timezone.now() - age, expires_at=timezone.now() - age + timedelta(minutes=15))
    client.post(url(alice, "playground/key"), sent)
    assert [*watch.expiring_keys(timezone.now())] == []
    assert rows.count() == 2


def test_the_playground_leaves_a_key_that_became_an_admin_key(alice: Person) -> None:
    client, path = as_role(alice, Role.MEMBER), url(alice, "playground/key")
    first = client.post(path, {"project": alice.project.pk}).json()["key"]
    APIKey.objects.filter(name="playground").update(is_admin=True, manages_as=Role.OWNER)
    second = look_up(client.post(path, {"project": alice.project.pk}).json()["key"])
    assert (second.manages_as, is_let_in(first)) == ("", True)


def test_the_playgrounds_code_names_what_it_cannot_write(alice: Person) -> None:
    client, path = as_role(alice, Role.MEMBER), url(alice, "playground/code")
    sent = {"protocol": "chat", "dialect": "bitseek", "body": '{"model": "é", "stop": ["</script>"]}'}
    code = client.post(path, sent).json()
    assert "http://testserver/bitseek/v1/chat/completions" in code["curl"]
    assert "stop=[\n    '</script>'\n  ]" in code["python"]
    assert '"model": "é"' in code["node"]
    for wrong in (
        {"protocol": "x"},
        {"dialect": "x"},
        {"body": "[]"},
        {"body": "{"},
        {"body": "[" * 100_000},
    ):
        answer = client.post(path, sent | wrong)
        assert answer.status_code == 400, wrong
        assert next(iter(wrong)) in answer.content.decode()
