"""The operator's pages about keys: what they show and change, for each role."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.forms.models import BaseModelForm
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from accounts import keys
from accounts.audit.models import AuditEntry
from accounts.authentication import look_up
from accounts.models import APIKey, Member, Organization, RateLimit, Role
from chatapi.models import ModelKind, ServedModel
from tests.admin_pages import client_of, text
from tests.cast import Person, is_let_in, join, run
from usage.insights.keys import key_activity
from usage.insights.recent_sums import DAYS
from usage.models import BudgetLimit, HourlyUsage
from usage.rollups import closing

LIST, ADD = "/admin/accounts/apikey/", "/admin/accounts/apikey/add/"
EMPTY = {"default_dialect": "", "expires_at_0": "", "expires_at_1": ""}
SECRET = re.compile(r"ck_(?:live|test)_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}")


def page(row: APIKey, action: str = "change") -> str:
    return f"{LIST}{row.pk}/{action}/"


def secret_in(response: Any) -> str:
    return SECRET.findall(response.content.decode())[0]  # type: ignore[no-any-return]


# ---- a new key


def test_a_key_is_made_with_all_that_it_may_do(root: Client, alice: Person, small: ServedModel) -> None:
    form = EMPTY | {
        "project": alice.project.pk,
        "name": "narrow",
        "scopes": ["completions", "models"],
        "allowed_models": ["small"],
    }
    caller = look_up(
        secret_in(
            root.post(
                ADD,
                form | {"default_dialect": "llama", "expires_at_0": "2099-01-01", "expires_at_1": "00:00"},
            )
        )
    )
    assert (set(caller.scopes), set(caller.allowed_models), caller.default_dialect) == (
        {"completions", "models"},
        {"small"},
        "llama",
    )
    assert APIKey.objects.get(name="narrow").expires_at is not None


@pytest.mark.parametrize(
    "wish",
    [
        {"scopes": ["everything"]},
        {"allowed_models": ["unknown"]},
        {"default_dialect": "klingon"},
        {"expires_at_0": "soon"},
        {"allowed_ips": "10.0.0.1 soon"},
    ],
)
def test_what_there_is_not_cannot_be_chosen(root: Client, alice: Person, wish: dict[str, Any]) -> None:
    assert root.post(ADD, EMPTY | {"project": alice.project.pk, "name": "new"} | wish).status_code == 200
    assert not APIKey.objects.filter(name="new").exists()


def test_the_secrets_page_has_requests_to_paste_for_this_host_key_and_model(
    root: Client, alice: Person, small: ServedModel
) -> None:
    response = root.post(
        ADD, EMPTY | {"project": alice.project.pk, "name": "new"}, headers={"host": "localhost:8123"}
    )
    shown, secret = text(response), secret_in(response)
    assert (
        f"curl http://localhost:8123/v1/chat/completions \\ -H &quot;Authorization: Bearer {secret}&quot;"
        in shown
    )
    assert f"base_url=&quot;http://localhost:8123/openai/v1&quot;, api_key=&quot;{secret}&quot;" in shown
    assert f"apiKey: &quot;{secret}&quot;" in shown
    assert "Anthropic( base_url=&quot;http://localhost:8123&quot;" in shown
    assert len(re.findall(r"model(?:&quot;)?[:=] ?&quot;small&quot;", shown)) == 5
    assert "/v1/embeddings" not in shown


def test_the_title_of_the_form_says_add_and_that_of_the_secrets_page_does_not(
    root: Client, alice: Person, small: ServedModel
) -> None:
    adds = b'tracking-tight">Add</span>'
    assert adds in root.get(ADD).content
    assert adds not in root.post(ADD, EMPTY | {"project": alice.project.pk, "name": "new"}).content


def test_a_key_for_embeddings_has_their_snippets(root: Client, alice: Person, small: ServedModel) -> None:
    small.kind = ModelKind.EMBEDDINGS
    small.save()
    shown = text(root.post(ADD, EMPTY | {"project": alice.project.pk, "name": "new"}))
    assert "curl http://testserver/v1/embeddings" in shown
    assert "chat/completions" not in shown


def test_a_new_key_leads_to_its_limits_for_people_that_may_set_them(
    root: Client, alice: Person, bob: Person
) -> None:
    for client, role in (
        (root, None),
        (client_of(alice.user), Role.OWNER),
        (client_of(bob.user), Role.MEMBER),
    ):
        shown = client.post(ADD, EMPTY | {"project": alice.project.pk, "name": f"{role}"}).content.decode()
        row = APIKey.objects.get(name=f"{role}")
        addresses = [
            f"/admin/accounts/ratelimit/add/?api_key={row.pk}",
            f"/admin/usage/budgetlimit/add/?api_key={row.pk}",
        ]
        assert [address in shown for address in addresses] == [role != Role.MEMBER] * 2
        assert all(client.get(address).status_code == 200 for address in addresses if address in shown)
    assert "Set rate limits" not in text(rotate(root, alice.api_key))


@pytest.mark.parametrize("rights", [{"scopes": ["models"]}, {"allowed_models": ["retired"]}])
def test_a_key_that_can_complete_nothing_is_shown_what_it_can(
    root: Client, alice: Person, small: ServedModel, rights: dict[str, Any]
) -> None:
    ServedModel.objects.create(id="retired")
    shown = text(root.post(ADD, EMPTY | {"project": alice.project.pk, "name": "new"} | rights))
    assert "curl http://testserver/v1/key" in shown
    assert "chat/completions" not in shown
    assert ("No model that this key may use is served yet" in shown) == ("allowed_models" in rights)


# ---- what it may do later


def test_rights_are_changed_and_a_model_that_is_gone_stays_on_the_list(
    root: Client, alice: Person, small: ServedModel
) -> None:
    APIKey.objects.filter(pk=alice.api_key.pk).update(allowed_models=["gone"])
    assert "gone (not in the catalog)" in text(root.get(page(alice.api_key)))
    form = EMPTY | {"name": "alice", "scopes": ["usage"], "allowed_models": ["gone"]}
    assert root.post(page(alice.api_key), form).status_code == 302
    caller = look_up(alice.key)
    assert (set(caller.scopes), set(caller.allowed_models)) == ({"usage"}, {"gone"})


def test_the_addresses_of_a_key_are_changed(root: Client, alice: Person) -> None:
    changed = page(alice.api_key)
    assert "You are at 127.0.0.1." in text(root.get(changed))
    root.post(
        changed, EMPTY | {"name": "alice", "is_admin": "on", "allowed_ips": "10.0.0.1/32\n2001:db8::/32"}
    )
    row = APIKey.objects.get(pk=alice.api_key.pk)
    assert (row.allowed_ips, row.is_admin) == (["10.0.0.1", "2001:db8::/32"], True)
    assert "10.0.0.1\n2001:db8::/32</textarea>" in root.get(changed).content.decode()
    entry = AuditEntry.objects.filter(action="changed", object_id=str(row.pk)).latest("pk")
    assert entry.changes["allowed_ips"] == [[], ["10.0.0.1", "2001:db8::/32"]]


def test_a_members_change_leaves_what_an_owner_made_of_the_key(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_a_role(form: Any) -> None:
        APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True, manages_as=Role.OWNER)

    monkeypatch.setattr(BaseModelForm, "clean", give_a_role)
    assert client_of(bob.user).post(page(alice.api_key), EMPTY | {"name": "renamed"}).status_code == 302
    row = APIKey.objects.get(pk=alice.api_key.pk)
    assert (row.name, row.is_admin, row.manages_as) == ("renamed", True, "owner")


# ---- rotation


def rotate(root: Client, row: APIKey, **wish: str) -> Any:
    return root.post(page(row, "rotate"), {"public": row.public, "overlap": "86400", "until": ""} | wish)


def test_a_rotation_shows_the_new_secret_once_and_lets_the_old_one_work(root: Client, alice: Person) -> None:
    response = rotate(root, alice.api_key)
    secret = secret_in(response)
    assert "no-store" in response.headers["cache-control"]
    assert is_let_in(secret)
    assert is_let_in(alice.key)
    row = APIKey.objects.get(pk=alice.api_key.pk)
    assert row.previous_expires_at is not None
    assert timedelta(hours=23) < row.previous_expires_at - timezone.now() <= timedelta(hours=24)
    shown = text(root.get(page(row)))
    assert f"{row.previous_redacted} works until" in shown
    assert "End old secret" in shown
    assert secret[21:] not in root.get(page(row)).content.decode()


def test_a_form_that_is_sent_twice_rotates_once(root: Client, alice: Person) -> None:
    secret = secret_in(rotate(root, alice.api_key))
    again = root.post(
        page(alice.api_key, "rotate"),
        {"public": alice.api_key.public, "overlap": "0", "until": ""},
        follow=True,
    )
    assert "Nothing was changed: since this form was opened" in text(again)
    assert is_let_in(secret)
    assert is_let_in(alice.key)


@pytest.mark.parametrize(
    ("wish", "works"), [({"overlap": "0"}, False), ({"overlap": "0", "until": "2099-01-01T12:30"}, True)]
)
def test_the_old_secret_ends_when_the_operator_says(
    root: Client, alice: Person, wish: dict[str, str], works: bool
) -> None:
    secret_in(rotate(root, alice.api_key, **wish))
    assert is_let_in(alice.key) == works
    if works:
        row = APIKey.objects.get(pk=alice.api_key.pk)
        assert row.previous_expires_at == datetime.fromisoformat("2099-01-01T12:30+00:00")


@pytest.mark.parametrize(
    "wish",
    [{"until": "2020-01-01T00:00"}, {"until": "soon"}, {"overlap": "-1"}, {"overlap": ""}, {"public": ""}],
)
def test_a_form_that_makes_no_sense_rotates_nothing(
    root: Client, alice: Person, wish: dict[str, str]
) -> None:
    assert not SECRET.search(rotate(root, alice.api_key, **wish).content.decode())
    assert APIKey.objects.get(pk=alice.api_key.pk).public == alice.api_key.public


def test_the_old_secret_is_ended_from_the_keys_page(root: Client, alice: Person) -> None:
    secret = secret_in(rotate(root, alice.api_key))
    root.post(page(alice.api_key, "end-previous"))
    assert not is_let_in(alice.key)
    assert is_let_in(secret)
    assert "End old secret" not in text(root.get(page(alice.api_key)))


@pytest.mark.parametrize(("left", "is_named"), [(timedelta(hours=1), True), (-timedelta(hours=1), False)])
def test_only_an_old_secret_that_works_is_said_to_end(
    root: Client, alice: Person, left: timedelta, is_named: bool
) -> None:
    values = {"previous_public": "old", "previous_digest": "x", "previous_expires_at": timezone.now() + left}
    APIKey.objects.filter(pk=alice.api_key.pk).update(**values)
    assert ("The secret before that one" in text(root.get(page(alice.api_key, "rotate")))) == is_named


# ---- disabled, enabled, revoked


def test_a_key_is_disabled_and_enabled_after_a_dialog(root: Client, alice: Person) -> None:
    shown = text(root.get(page(alice.api_key)))
    assert "Disable" in shown
    assert "Enable" not in shown
    root.post(page(alice.api_key, "disable"))
    assert not is_let_in(alice.key)
    assert "disabled" in text(root.get(LIST))
    root.post(page(alice.api_key, "enable"))
    assert is_let_in(alice.key)


@pytest.mark.parametrize(
    ("action", "question", "button"),
    [
        ("disable", "Disable this key?", "Disable"),
        ("enable", "Enable this key?", "Enable"),
        ("end-previous", "End the old secret now?", "End it"),
        ("revoke", "Revoke this key?", "Revoke"),
    ],
)
def test_a_question_opened_by_its_url_is_a_whole_page(
    root: Client, alice: Person, action: str, question: str, button: str
) -> None:
    path = page(alice.api_key, action)
    response = root.get(path)
    html = response.content.decode()
    assert re.search(rf"<title>\s*{re.escape(question)} \| chatapi</title>", html)
    assert 'href="#main">Skip to the content' in html
    assert f'<form class="stack" method="post" action="{path}">' in html
    assert f">{button}</button>" in html
    assert f'href="{page(alice.api_key)}"' in html
    shown = " ".join(text(response).split())
    assert f"{alice.api_key.name} ( {alice.api_key.redacted} ) of {alice.project}." in shown
    answer = root.post(path)
    assert (answer.status_code, answer.headers["location"]) == (302, page(alice.api_key))


def test_many_keys_are_disabled_and_enabled(
    root: Client, alice: Person, bob: Person, charlie: Person
) -> None:
    selected = {"_selected_action": [alice.api_key.pk, bob.api_key.pk]}
    root.post(LIST, {"action": "disable_selected", **selected})
    assert [is_let_in(person.key) for person in (alice, bob, charlie)] == [False, False, True]
    root.post(LIST, {"action": "enable_selected", **selected})
    assert is_let_in(alice.key)


@pytest.mark.parametrize("action", ["rotate", "disable", "enable", "end-previous", "revoke"])
def test_nothing_becomes_of_no_key(root: Client, action: str) -> None:
    for path in (f"{LIST}987654/{action}/", f"{LIST}abc/{action}/"):
        assert root.get(path).status_code == 403
        assert root.post(path).status_code == 403


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("rotate", "this key is revoked"),
        ("disable", "this key is revoked"),
        ("enable", "this key is revoked"),
        ("end-previous", "There was no old secret"),
        ("revoke", "The key is revoked."),
    ],
)
def test_a_button_of_a_key_that_was_revoked_meanwhile_changes_nothing_and_says_so(
    root: Client, alice: Person, action: str, said: str
) -> None:
    keys.revoke(APIKey.objects.all())
    before = APIKey.objects.values().get(pk=alice.api_key.pk)
    if action == "rotate":
        rotate(root, alice.api_key)
    else:
        answer = root.post(page(alice.api_key, action))
        assert answer.headers["location"] == page(alice.api_key)
    shown = text(root.get(page(alice.api_key)))
    assert said in shown
    assert "Rotate" not in shown
    assert APIKey.objects.values().get(pk=alice.api_key.pk) == before


# ---- permissions


@pytest.mark.parametrize(("role", "may"), [(Role.VIEWER, False), (Role.MEMBER, True), (Role.OWNER, True)])
def test_a_role_decides_on_changing_keys(alice: Person, bob: Person, role: Role, may: bool) -> None:
    Member.objects.filter(user=bob.user).update(role=role)
    client = client_of(bob.user)
    assert ("Rotate" in text(client.get(page(alice.api_key)))) == may
    assert SECRET.search(rotate(client, alice.api_key).content.decode()) is not None if may else True
    client.post(LIST, {"action": "disable_selected", "_selected_action": [alice.api_key.pk]})
    assert is_let_in(alice.key) != may


def test_a_viewer_reads_what_a_key_may_do(alice: Person, bob: Person) -> None:
    Member.objects.filter(user=bob.user).update(role=Role.VIEWER)
    shown = text(client_of(bob.user).get(page(alice.api_key)))
    assert "Scopes everything" in shown
    assert "Allowed models all" in shown
    assert "Allowed IP addresses all" in shown
    assert "Add one for this key" not in shown


@pytest.mark.parametrize("action", ["change", "rotate", "disable", "revoke"])
def test_a_stranger_finds_no_key(alice: Person, charlie: Person, action: str) -> None:
    client = client_of(charlie.user)
    assert client.get(page(alice.api_key, action)).status_code in {403, 404}
    assert client.post(
        page(alice.api_key, action), {"public": alice.api_key.public, "overlap": "0"}
    ).status_code in {403, 404}
    client.post(LIST, {"action": "revoke_selected", "_selected_action": [alice.api_key.pk]})
    assert is_let_in(alice.key)
    assert alice.api_key.redacted not in text(client.get(LIST))


def test_a_viewer_in_one_organization_changes_nothing_there(alice: Person, charlie: Person) -> None:
    Member.objects.create(user=charlie.user, organization=alice.project.organization, role=Role.VIEWER)
    ids = [alice.api_key.pk, charlie.api_key.pk]
    client_of(charlie.user).post(LIST, {"action": "revoke_selected", "_selected_action": ids})
    assert [is_let_in(person.key) for person in (alice, charlie)] == [True, False]


# ---- what it did, and what limits it


def book(person: Person, days_ago: int, requests: int) -> None:
    """Add usage to the rollup."""
    moment = (timezone.now() - timedelta(days=days_ago)).replace(hour=3, minute=0, second=0, microsecond=0)
    owner = {
        "organization": person.project.organization,
        "project": person.project,
        "api_key": person.api_key,
    }
    sums = {
        "requests": requests,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "amount_nanodollars": 2_000_000_000,
    }
    HourlyUsage.objects.create(hour=moment, model="small", outcome="completed", **owner, **sums)


@pytest.mark.parametrize("are_closed", [False, True])
def test_activity_is_the_rollups_by_day(alice: Person, bob: Person, are_closed: bool) -> None:
    for days_ago, requests in ((31, 100), (29, 1), (3, 2), (0, 4)):
        book(alice, days_ago, requests)
    book(bob, 3, 50)
    if are_closed:
        while closing.close_next():
            pass
    found = key_activity([alice.api_key, bob.api_key], timezone.now())
    mine = found[alice.api_key.pk]
    assert list(mine.requests_by_day) == [1, *[0] * (DAYS - 5), 2, 0, 0, 4]
    assert (mine.requests, mine.total_tokens, mine.amount_nanodollars) == (7, 45, 6_000_000_000)
    assert mine.last_request_at is None
    assert found[bob.api_key.pk].requests == 50


def test_the_list_shows_bars_in_words_too_and_the_last_request(root: Client, alice: Person) -> None:
    assert "No requests in the last 30 days" in root.get(LIST).content.decode()
    run(alice)
    shown = root.get(LIST).content.decode()
    assert f'aria-label="1 request in the last 30 days, most on {timezone.now():%Y-%m-%d}: 1"' in shown
    assert "just now" in shown


def test_a_keys_page_shows_what_it_did_and_all_that_limits_it(
    root: Client, alice: Person, bob: Person
) -> None:
    run(alice)
    RateLimit.objects.create(api_key=alice.api_key, model="small", requests_per_minute=60)
    RateLimit.objects.create(organization=alice.project.organization, concurrent_requests=0)
    RateLimit.objects.create(project=alice.project, tokens_per_day=2_000, concurrent_requests=1)
    RateLimit.objects.create(project=bob.project, tokens_per_day=7)
    BudgetLimit.objects.create(
        scope="key", scope_id=alice.api_key.pk, period="month", limit_nanodollars=5 * 10**9
    )
    BudgetLimit.objects.create(
        scope="project", scope_id=alice.project.pk, period="day", limit_nanodollars=10**9
    )
    shown = text(root.get(page(alice.api_key)))
    assert "1 request, 1,200 tokens, $0.00024 ." in shown
    assert (
        "this key small 60 requests per minute its project all together 2,000 tokens per day,"
        " 1 concurrent request its organization all together 0 concurrent requests Budgets" in shown
    )
    assert "this key, this month 0 % $0.00024 $0.00 $5.00" in shown
    assert "this key, total $0.00024 $0.00 none" in shown
    assert "its project, this day 0 % $0.00024 $0.00 $1.00" in shown


@pytest.mark.parametrize("path", ["/admin/accounts/ratelimit/add/", "/admin/usage/budgetlimit/add/"])
def test_the_links_to_limits_have_the_key_filled_in(root: Client, alice: Person, path: str) -> None:
    link = f"{path}?api_key={alice.api_key.pk}"
    assert link in root.get(page(alice.api_key)).content.decode()
    assert f'<option value="{alice.api_key.pk}" selected>' in root.get(link).content.decode()


# ---- what it costs


def test_a_longer_list_costs_no_more_queries(
    root: Client, alice: Person, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(12):
        person = join(
            f"person-{number}", Role.MEMBER, Organization.objects.create(name=f"Org {number}"), "default"
        )
        book(person, number, 3)
    root.get(LIST)
    with django_assert_max_num_queries(9):
        assert "person-11" in text(root.get(LIST))


def test_a_keys_page_costs_as_many_queries_as_before_with_more_limits(
    root: Client, alice: Person, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(12):
        RateLimit.objects.create(api_key=alice.api_key, model=f"model-{number}", requests_per_minute=number)
        ServedModel.objects.create(id=f"model-{number}")
        book(alice, number, number + 1)
    root.get(page(alice.api_key))
    with django_assert_max_num_queries(18):
        root.get(page(alice.api_key))


# ---- admin keys


@pytest.mark.parametrize("role", [Role.OWNER, Role.ADMIN])
def test_owners_and_admins_make_admin_keys(acme: Organization, role: Role) -> None:
    person = join("boss", role, acme, "default")
    client = client_of(person.user)
    assert look_up(
        secret_in(client.post(ADD, EMPTY | {"project": person.project.pk, "name": "new", "is_admin": "on"}))
    ).is_admin
    assert client.post(page(person.api_key), EMPTY | {"name": "boss", "is_admin": "on"}).status_code == 302
    assert look_up(person.key).is_admin


def test_a_member_makes_no_admin_key(acme: Organization, bob: Person) -> None:
    client = client_of(bob.user)
    assert 'name="is_admin"' not in client.get(ADD).content.decode()
    client.post(ADD, EMPTY | {"project": bob.project.pk, "name": "new", "is_admin": "on"})
    client.post(page(bob.api_key), EMPTY | {"name": "bob", "is_admin": "on"})
    assert not APIKey.objects.filter(is_admin=True).exists()


def test_a_role_elsewhere_makes_no_admin_key_here(bob: Person, charlie: Person) -> None:
    """Bob is a member of Acme, and an admin of Umbrella."""
    Member.objects.create(organization=charlie.project.organization, user=bob.user, role=Role.ADMIN)
    client = client_of(bob.user)
    shown = client.post(ADD, EMPTY | {"project": bob.project.pk, "name": "new", "is_admin": "on"})
    assert "Only owners and admins of the organization" in text(shown)
    assert not APIKey.objects.filter(name="new").exists()
    assert secret_in(
        client.post(ADD, EMPTY | {"project": charlie.project.pk, "name": "theirs", "is_admin": "on"})
    )


def test_a_member_changes_no_admin_key_in_any_way(alice: Person, bob: Person) -> None:
    APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True, is_active=False, scopes=["models"])
    before = APIKey.objects.filter(pk=alice.api_key.pk).values().get()
    client = client_of(bob.user)
    assert client.get(page(alice.api_key)).status_code == 200
    assert client.post(page(alice.api_key), EMPTY | {"name": "mine"}).status_code == 403
    for action in ("rotate", "end-previous", "enable", "disable", "revoke"):
        form = {"public": alice.api_key.public, "overlap": "0"}
        assert client.post(page(alice.api_key, action), form).status_code == 403, action
    for action in ("enable_selected", "disable_selected", "revoke_selected"):
        client.post(LIST, {"action": action, "_selected_action": [alice.api_key.pk]})
    assert APIKey.objects.filter(pk=alice.api_key.pk).values().get() == before
