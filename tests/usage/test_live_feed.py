"""Access to the Live page's feed, and its end for people that lose the permission."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import memberships, own_roles
from accounts.models import Member, Role
from accounts.sign_in.sessions import SignIn, permitted
from chatapi.asgi import application
from tests.admin_pages import client_of
from tests.cast import Person, admit
from usage.database.clock import database_now
from usage.models import Generation, State
from usage.pages import live, live_feed

pytestmark = pytest.mark.django_db(transaction=True)

TICK_S = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the ticks, and give this test's event loop its own snapshots."""
    live_feed.snapshots_of.cache_clear()
    monkeypatch.setattr(live_feed.Snapshots.__init__, "__defaults__", (TICK_S,))
    monkeypatch.setattr(live_feed, "OPEN_PAGES", live_feed.OpenPages(live_feed._see, TICK_S))


@pytest.fixture
async def feed() -> AsyncIterator[Callable[[Client], Any]]:
    """Opens feeds with the cookies of a browser."""
    opened: list[WebsocketCommunicator] = []

    def listen(client: Client, path: str = "/admin/live/feed") -> WebsocketCommunicator:
        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
        headers = [(b"cookie", cookies.encode()), (b"origin", b"http://127.0.0.1"), (b"host", b"127.0.0.1")]
        opened.append(WebsocketCommunicator(application, path, headers))
        return opened[-1]

    yield listen
    for each in opened:
        await each.disconnect()


async def end_of(feed: WebsocketCommunicator) -> int:
    """Return the code that closes it, after its last messages."""
    while True:
        message = await feed.receive_output(timeout=5)
        if message["type"] == "websocket.close":
            return int(message["code"])


def removed(alice: Person, client: Client) -> None:
    Member.objects.filter(user=alice.user).delete()


def deactivated(alice: Person, client: Client) -> None:
    User.objects.filter(pk=alice.user.pk).update(is_active=False)


def signed_out(alice: Person, client: Client) -> None:
    client.logout()


def given_another_password(alice: Person, client: Client) -> None:
    alice.user.set_password("another-passphrase")
    alice.user.save()


@pytest.mark.parametrize("leave", [removed, deactivated, signed_out, given_another_password])
async def test_the_feed_ends_for_permitted_not_look_any_more(
    feed: Any, alice: Person, leave: Callable[[Person, Client], None]
) -> None:
    row = await sync_to_async(admit)(alice)
    client = await sync_to_async(client_of)(alice.user)
    socket = feed(client)
    assert (await socket.connect())[0]
    assert [each["id"] for each in json.loads(await socket.receive_from())["rows"]] == [str(row)]
    await sync_to_async(leave)(alice, client)
    assert await end_of(socket) == live_feed.RELOAD
    again = feed(client)
    assert not (await again.connect())[0]


async def test_the_feed_ends_when_the_person_sees_other_organizations(
    feed: Any, alice: Person, charlie: Person
) -> None:
    theirs = await sync_to_async(admit)(charlie)
    client = await sync_to_async(client_of)(alice.user)
    socket = feed(client)
    assert (await socket.connect())[0]
    assert json.loads(await socket.receive_from())["rows"] == []
    await Member.objects.acreate(organization=charlie.project.organization, user=alice.user, role=Role.VIEWER)
    assert await end_of(socket) == live_feed.RELOAD
    again = feed(client)
    assert (await again.connect())[0]
    assert [each["id"] for each in json.loads(await again.receive_from())["rows"]] == [str(theirs)]


async def test_a_consoles_feed_has_its_organizations_requests_only(
    feed: Any, alice: Person, charlie: Person
) -> None:
    own, theirs = await sync_to_async(admit)(alice), await sync_to_async(admit)(charlie)
    umbrella = charlie.project.organization
    client = await sync_to_async(client_of)(alice.user)
    shown = []
    for is_member in (False, True):
        if is_member:
            await Member.objects.acreate(organization=umbrella, user=alice.user, role=Role.VIEWER)
        for organization_id in (alice.project.organization_id, umbrella.pk):
            socket = feed(client, f"/console/{organization_id}/live/feed")
            assert (await socket.connect())[0]
            shown.append([each["id"] for each in json.loads(await socket.receive_from())["rows"]])
    assert shown == [[str(own)], [], [str(own)], [str(theirs)]]


async def test_a_member_of_single_projects_gets_their_requests_in_the_console_only(
    feed: Any, alice: Person, bob: Person
) -> None:
    own, _ = await sync_to_async(admit)(bob), await sync_to_async(admit)(alice)
    member = await Member.objects.aget(user=bob.user)
    await sync_to_async(memberships.change_place)(member, Role.VIEWER, [bob.project])
    client = await sync_to_async(client_of)(bob.user)
    assert not (await feed(client).connect())[0]
    path = f"/console/{bob.project.organization_id}/live/feed"
    socket = feed(client, path)
    assert (await socket.connect())[0]
    assert [each["id"] for each in json.loads(await socket.receive_from())["rows"]] == [str(own)]
    await member.projects.aset([alice.project])
    assert await end_of(socket) == live_feed.RELOAD
    await member.projects.aclear()
    again = feed(client, path)
    assert (await again.connect())[0]
    assert json.loads(await again.receive_from())["rows"] == []


async def test_an_own_role_that_reads_requests_gets_them_in_the_console_only(
    feed: Any, alice: Person, bob: Person, charlie: Person
) -> None:
    """Bob is a viewer of Umbrella, too, where the admin shows him what runs."""
    own, theirs = await sync_to_async(admit)(alice), await sync_to_async(admit)(charlie)
    here, there = alice.project.organization_id, charlie.project.organization_id
    role = await sync_to_async(own_roles.create)(here, "Usage", "", own_roles.with_choices(["usage"]))
    member = await Member.objects.aget(user=bob.user)
    await sync_to_async(memberships.change_role)(member, role)
    client, path = await sync_to_async(client_of)(bob.user), f"/console/{here}/live/feed"
    assert not (await feed(client).connect())[0]
    await Member.objects.acreate(user=bob.user, organization_id=there, role=Role.VIEWER)
    in_admin, socket = feed(client), feed(client, path)
    for each, shown in ((in_admin, theirs), (socket, own)):
        assert (await each.connect())[0]
        assert [row["id"] for row in json.loads(await each.receive_from())["rows"]] == [str(shown)]
    await sync_to_async(own_roles.change)(role, "Usage", "", own_roles.BASE)
    assert await end_of(socket) == live_feed.RELOAD
    again = feed(client, path)
    assert (await again.connect())[0]
    assert json.loads(await again.receive_from())["rows"] == []


async def test_staff_see_as_long_as_they_are_staff_and_have_the_permission(feed: Any) -> None:
    clerk = await User.objects.acreate_user("clerk", is_staff=True)
    permission = await Permission.objects.aget(codename="view_generation")
    for take in (
        clerk.user_permissions.clear,
        lambda: User.objects.filter(pk=clerk.pk).update(is_staff=False),
    ):
        await clerk.user_permissions.aadd(permission)
        socket = feed(await sync_to_async(client_of)(clerk))
        assert (await socket.connect())[0]
        await sync_to_async(take)()
        assert await end_of(socket) == live_feed.RELOAD


async def test_the_feed_goes_on_after_a_snapshot_that_failed(
    feed: Any, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, failures = live.snapshot, iter([OperationalError("away"), LookupError("a bug")])

    def snapshot(*arguments: Any, **options: Any) -> Any:
        for failure in failures:
            raise failure
        return usual(*arguments, **options)

    monkeypatch.setattr(live, "snapshot", snapshot)
    socket = feed(await sync_to_async(client_of)(alice.user))
    assert (await socket.connect())[0]
    assert json.loads(await socket.receive_from(timeout=5))["rows"] == []


async def test_nobody_looks_on_while_it_is_not_known_permitted(
    feed: Any, alice: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(sign_ins: object) -> Any:
        raise LookupError("a bug")

    monkeypatch.setattr(live_feed, "OPEN_PAGES", live_feed.OpenPages(fails, TICK_S))
    socket = feed(await sync_to_async(client_of)(alice.user))
    assert (await socket.connect())[0]
    assert await end_of(socket) == live_feed.RELOAD
    assert "could not check the people who look" in caplog.messages


async def test_a_visitor_that_comes_while_others_are_checked_is_not_sent_away() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slowly(sign_ins: Collection[SignIn]) -> Any:
        asked.set()
        await answer.wait()
        return dict.fromkeys(sign_ins, live.Sight((1,)))

    async with asyncio.timeout(5):
        viewers, (first, second) = (
            live_feed.OpenPages(slowly, 0.01),
            (SignIn(number, "session", "hash") for number in (1, 2)),
        )
        looking = [asyncio.create_task(viewers.until_changed(first, live.Sight((1,))))]
        await asked.wait()
        looking.append(asyncio.create_task(viewers.until_changed(second, live.Sight((1,)))))
        await asyncio.sleep(0)
        asked.clear()
        answer.set()
        await asked.wait()
    assert [task.done() for task in looking] == [False, False]
    for task in looking:
        task.cancel()
    await asyncio.gather(*looking, return_exceptions=True)


def test_a_request_that_goes_to_another_model_is_sent_again(alice: Person) -> None:
    rows = Generation.objects.filter(pk=admit(alice).pk)
    rows.update(state=State.RUNNING, claimed_at=database_now())
    before = live.snapshot({})
    rows.update(claimed_at=database_now() - timedelta(seconds=1))
    same = live.snapshot(before)
    assert json.loads(live.difference(before, same, 0))["rows"] == []
    rows.update(model="a fallback")
    (sent,) = json.loads(live.difference(same, live.snapshot(same), 0))["rows"]
    assert sent["model"] == "a fallback"


async def test_a_visitor_without_a_session_is_not_connected(feed: Any, db: None) -> None:
    assert not (await feed(Client()).connect())[0]


def test_many_are_asked_about_in_four_queries(alice: Person, bob: Person, charlie: Person) -> None:
    people = [person.user for person in (alice, bob, charlie)] + [
        User.objects.create_superuser(f"root {n}") for n in range(5)
    ]
    people += [User.objects.create_user(f"clerk {n}", is_staff=True) for n in range(5)]
    sign_ins = [
        SignIn(user.pk, str(client_of(user).session.session_key), user.get_session_auth_hash())
        for user in people
    ]
    with CaptureQueriesContext(connection) as queries:
        allowed = permitted("usage.view_generation", sign_ins)
    assert len(queries) == 4
    assert list(allowed) == sign_ins[:8], "clerks have no permission"
