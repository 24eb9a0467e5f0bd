"""The console's Live page: what it shows of the running requests, and which it stops."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from accounts import end_users
from accounts.audit.models import AuditEntry
from accounts.models import Role
from chatapi.identity import new_id, on_one_of
from chatapi.pages import stopping
from tests.admin_pages import client_of, text
from tests.cast import PRICE, Person, admit, run
from tests.chatapi.console_pages import as_role, url
from tests.chatapi.worker.processes import Valkey
from usage.books import ledger
from usage.database.clock import database_now
from usage.models import Generation
from usage.pages import live

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture
def streams(settings: Any, valkey: Valkey) -> Valkey:
    """Return the Redis in which stops are."""
    settings.STREAMS_URL = f"unix://{valkey.socket}"
    return valkey


def running(person: Person, tokens: int = 5, **changes: Any) -> Generation:
    row = admit(person, **changes)
    ledger.claim(database_now(), [ledger.Claim(row.pk, "worker-1", 6_000)])
    ledger.beat(
        database_now(), [ledger.Beat("worker-1", [ledger.Pulse(row.pk, 1, tokens, "azure-east-7")], 6_000)]
    )
    return row


def test_it_shows_what_runs_with_its_tokens_and_cost(alice: Person, bob: Person, charlie: Person) -> None:
    own = [running(alice, 1_000), running(bob, 500, model="other")]
    theirs, ended = running(charlie), run(alice)
    page = client_of(alice.user).get(url(alice, "live"))
    shown = page.content.decode()
    assert [row.id for row, _ in page.context["rows"]] == [str(row) for row in own]
    assert (page.context["count"], page.context["tokens"]) == (2, "1,500")
    per_mtok = PRICE.output_per_mtok_nanodollars
    assert page.context["rows"][0][0].cost_nanodollars == 1_000 * per_mtok // 1_000_000
    assert not any(str(row) in shown for row in (theirs, ended))
    assert "azure-east-7" not in shown


@pytest.mark.parametrize("path", ["/admin/live/", None])
def test_ages_are_in_whole_minutes_from_the_second_one_on(alice: Person, path: str | None) -> None:
    for age in (timedelta(hours=2, minutes=50), timedelta(minutes=18, seconds=12), timedelta(seconds=80)):
        Generation.objects.filter(pk=running(alice).pk).update(admitted_at=database_now() - age)
    page = client_of(alice.user).get(path or url(alice, "live"))
    ages = [age for _, age in page.context["rows"]]
    assert ages[:2] == ["2 h", "18 min"]
    assert re.fullmatch(r"(8\d|9\d|1[01]\d) s", ages[2])
    assert all(age in text(page) for age in ages)


def test_it_is_filtered_by_project_key_and_model(alice: Person, bob: Person) -> None:
    own = {"alice": running(alice), "bob": running(bob, model="other")}
    client = client_of(alice.user)
    for query, name in (
        (f"key={bob.api_key.pk}", "bob"), ("model=small", "alice"), (f"key={alice.api_key.pk}", "alice"),
        (f"project={bob.project.pk}", "bob"), ("project=default", "alice"),
        ("project=Acme+/+research", "bob"),
    ):  # fmt: skip
        page = client.get(url(alice, f"live?{query}"))
        assert [row.id for row, _ in page.context["rows"]] == [str(own[name])], query
    assert "No running request matches." in text(client.get(url(alice, "live?project=999&key=x&model=<b>")))
    assert "No running request matches." in text(client.get(url(alice, "live"), {"model": "a\0 "}))


def test_a_filter_of_what_does_not_run_has_its_name(alice: Person, charlie: Person) -> None:
    client, own = client_of(alice.user), {"project": alice.project.pk, "key": alice.api_key.pk}
    filters = list(client.get(url(alice, "live"), own).context["form"])
    assert [each.field.choices[-1][1] for each in filters[:3]] == ["default", str(alice.api_key), "any"]
    assert [each.value() for each in filters] == [*map(str, own.values()), None, None]
    theirs = {"project": charlie.project.pk, "key": charlie.api_key.pk}
    filters = list(client.get(url(alice, "live"), theirs).context["form"])
    assert [each.field.choices[-1][1] for each in filters[:2]] == [
        f"number {each}" for each in theirs.values()
    ]


@pytest.mark.parametrize("path", ["/admin/live/", None])
def test_the_link_of_a_key_keeps_the_model(alice: Person, path: str | None) -> None:
    running(alice, model="KEY&b")
    shown = client_of(alice.user).get(path or url(alice, "live"), {"model": "KEY&b"}).content.decode()
    found = re.findall(r'data-key-link href="([^"]*)"', shown)
    assert found == [f"?key={key}&amp;model=KEY%26b" for key in (alice.api_key.pk, "KEY")]


@pytest.mark.parametrize("path", ["/admin/live/", None])
def test_it_is_filtered_by_end_user(alice: Person, bob: Person, path: str | None) -> None:
    digest = end_users.digest("eve@example.com")
    named, hashed, other = (
        running(person, end_user=name)
        for person, name in ((alice, "eve@example.com"), (bob, digest), (alice, "mallory"))
    )
    client, path = client_of(alice.user), path or url(alice, "live")
    queries: list[tuple[dict[str, Any], list[Generation]]] = [
        ({"end_user": " eve@example.com "}, [named, hashed]),
        ({"end_user": digest}, [hashed]),
        ({"end_user": "eve@example.com", "project": bob.project.pk}, [hashed]),
        ({"end_user": "eve@example.com", "key": alice.api_key.pk}, [named]),
        ({"end_user": "mallory"}, [other]),
        ({"end_user": "mall\0"}, []),
    ]
    for query, own in queries:
        page = client.get(path, query)
        assert [row.id for row, _ in page.context["rows"]] == [str(row) for row in own], query
        assert json.loads(page.context["end_user_names"])[:1] == [str(query["end_user"]).strip()]
    shown = client.get(path, {"project": bob.project.pk}).content.decode()
    assert digest in shown
    assert "eve@example.com" not in shown


@pytest.mark.parametrize("path", ["/admin/live/", None])
def test_a_row_links_its_end_user_of_its_project(alice: Person, path: str | None) -> None:
    running(alice, end_user="a&b/c", model="NAME")
    shown = client_of(alice.user).get(path or url(alice, "live"), {"model": "NAME"}).content.decode()
    found = re.findall(r'data-end-user-link [^>]*href="([^"]*)"', shown)
    ends = [f"?project={alice.project.pk}&amp;end_user=a%26b%2Fc", "?project=PROJECT&amp;end_user=NAME"]
    assert found == [f"{end}&amp;model=NAME" for end in ends]


@pytest.mark.parametrize("path", ["/admin/live/", None])
def test_a_filtered_page_says_that_it_has_only_the_oldest(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    monkeypatch.setattr(live, "MAX_ROWS", 1)
    running(bob)
    running(alice)
    client, path = client_of(alice.user), path or url(alice, "live")
    assert "or more; the oldest are shown" in text(client.get(path))
    shown = text(client.get(path, {"key": alice.api_key.pk}))
    assert "None of the 1 oldest running requests matches." in shown
    assert "among the 1 oldest running requests" in shown


def test_an_empty_page_says_where_finished_requests_are(alice: Person) -> None:
    assert "Nothing is running. Finished requests are in Requests" in text(
        client_of(alice.user).get(url(alice, "live"))
    )


def test_a_viewer_has_no_button(alice: Person) -> None:
    running(alice)
    shown = as_role(alice, Role.VIEWER).get(url(alice, f"live?key={alice.api_key.pk}")).content.decode()
    assert "/stop" not in shown
    assert "/stop" in as_role(alice, Role.ADMIN).get(url(alice, "live")).content.decode()


def test_one_request_is_stopped(alice: Person, streams: Valkey) -> None:
    row, client = running(alice), as_role(alice, Role.ADMIN)
    path = url(alice, f"live/{row}/stop")
    assert client.post(path, headers={"accept": "application/json"}).status_code == 204
    assert streams.client.keys(f"*{row.pk.hex}*")
    entry = AuditEntry.objects.get(action="asked to stop")
    assert (entry.object_name, entry.actor_id) == (str(row), alice.user.pk)


def test_all_requests_of_a_key_are_stopped_and_no_others(
    alice: Person, bob: Person, charlie: Person, streams: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the two oldest requests, none is of the key.
    monkeypatch.setattr(live, "MAX_ROWS", 2)
    others, own = [running(bob), running(charlie), running(bob)], [running(alice), running(alice)]
    client, path = as_role(alice, Role.ADMIN), url(alice, "live/stop-key")
    answer = client.post(path, {"key": alice.api_key.pk}, follow=True)
    assert "Asked to stop 2 requests." in text(answer)
    client.post(path, {"key": charlie.api_key.pk})
    client.post(path, {"key": "x"})
    stopped = AuditEntry.objects.filter(action="asked to stop").values_list("object_name", flat=True)
    assert set(stopped) == {str(row) for row in own}
    assert not any(streams.client.keys(f"*{row.pk.hex}*") for row in others)


@pytest.mark.parametrize("path", ["/admin/live/", None])
def test_all_requests_of_an_end_user_are_stopped_and_no_others(
    alice: Person, bob: Person, charlie: Person, streams: Valkey, path: str | None
) -> None:
    own = [running(alice, end_user=name) for name in ("eve", end_users.digest("eve"))]
    others = [running(person, end_user="eve") for person in (bob, charlie)]
    others.append(running(alice, end_user="mallory"))
    client, path = as_role(alice, Role.ADMIN), path or url(alice, "live")
    stop = f"{path.rstrip('/')}/stop-end-user"
    form: dict[str, Any] = {"project": alice.project.pk, "end_user": "eve"}
    assert "stop-end-user" in client.get(path, form).content.decode()
    answer = client.post(stop, form, follow=True)
    assert "Asked to stop 2 requests." in text(answer)
    assert answer.context["chosen"]["end_user"] == "eve"
    client.post(stop, {"project": charlie.project.pk, "end_user": "eve"})
    for mistake in ({"end_user": "eve"}, {"project": alice.project.pk}, {"project": "x", "end_user": "eve"}):
        assert "Nothing was stopped" in text(client.post(stop, mistake, follow=True))
    stopped = AuditEntry.objects.filter(action="asked to stop").values_list("object_name", flat=True)
    assert set(stopped) == {str(row) for row in own}
    assert not any(streams.client.keys(f"*{row.pk.hex}*") for row in others)


def test_the_end_users_of_all_projects_are_not_stopped_together(alice: Person) -> None:
    running(alice, end_user="eve")
    page = as_role(alice, Role.ADMIN).get(url(alice, "live"), {"end_user": "eve"})
    assert "To stop all of this end user, choose a project." in text(page)
    assert "stop-end-user" not in page.content.decode()


def test_without_redis_nothing_claims_to_be_stopped(alice: Person, settings: Any) -> None:
    settings.STREAMS_URL = "unix:///nowhere"
    row = running(alice)
    assert not stopping.ask_to_stop([row])
    answer = as_role(alice, Role.ADMIN).post(
        url(alice, "live/stop-key"), {"key": alice.api_key.pk}, follow=True
    )
    assert "could not be stopped" in text(answer)
    assert not AuditEntry.objects.filter(action="asked to stop").exists()


def test_a_server_of_streams_that_is_away_spares_no_request_of_another(
    alice: Person, settings: Any, valkey: Valkey
) -> None:
    settings.STREAMS_URL = f"unix:///nowhere,unix://{valkey.socket}"
    away, there, unknown = (running(alice, id=on_one_of([number], new_id())) for number in (0, 1, 2))
    client, path = as_role(alice, Role.ADMIN), url(alice, "live/stop-key")
    assert "could not be stopped" in text(client.post(path, {"key": alice.api_key.pk}, follow=True))
    assert valkey.client.keys(f"*{there.pk.hex}*")
    stopped = AuditEntry.objects.filter(action="asked to stop").values_list("object_name", flat=True)
    assert list(stopped) == [str(there)]
    assert not stopping.ask_to_stop([away])
    assert not stopping.ask_to_stop([unknown])
