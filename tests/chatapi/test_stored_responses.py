"""Responses of a project that stores them for days, in a whole installation: they outlive Redis and the web
process, and nothing else.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import canaries
from tests.chatapi.http_client import Client
from tests.chatapi.test_responses import (
    ask,
    assert_no_previous,
    assert_unknown,
    events,
    get,
    messages,
    text_of,
)
from tests.faults import armed
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("stored_responses"), pytest.mark.timeout(180)]

MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "steady": {"tokens": 1000, "rate": 40},
    "calls": {"tool_calls": 2},
    "breaks": {"fin_after": 3},
}
MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
keys = {}
for name, days in {"week": 7, "other": 7, "none": 0}.items():
    project = get_or_create_project("Tests", name)
    type(project).objects.filter(pk=project.pk).update(stores_responses_days=days)
    keys[name] = create_key(project, name=name)[1]
keys["a test key"] = create_key(get_or_create_project("Tests", "week"), name="test", is_test=True)[1]
project = get_or_create_project("Strangers", "default")
type(project).objects.update(stores_responses_days=7)
keys["another organization"] = create_key(project, name="stranger")[1]
type(project).objects.filter(name="none").update(stores_responses_days=0)
print(json.dumps(keys))
"""
IDS = "from chatapi.models import StoredResponse as S; print(*(each.pk.hex for each in S.objects.all()))"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    # One of the tests starts two processes while a request waits.
    long = {"CHATAPI_QUEUE_TTL_MS": "60000"}
    with Installation(tmp_path_factory.mktemp("stored"), **long) as installation:
        installation.start(MODELS)
        installation.keys |= json.loads(installation.shell(MAKE))
        yield installation
        installation.verify()


def client_of(installation: Installation, name: str) -> Client:
    return Client(installation.url, installation.keys[name])


@pytest.fixture
def client(installation: Installation) -> Client:
    return client_of(installation, "week")


def lose_redis(installation: Installation) -> None:
    """Empty Redis, once the responses are stored, and start the web process again."""
    with canaries.open_valkey(installation) as redis:
        wait_for(lambda: not any(redis.zcard(name) for name in redis.keys("*unstored")), "the responses")
        redis.flushall()
    installation.end("web")
    installation.start_web()


def keep_house(installation: Installation) -> None:
    """Let a reaper do its housekeeping; it begins with that."""
    installation.end("reaper")
    installation.start_reaper()


def is_stored(installation: Installation, response_id: str) -> bool:
    return response_id.removeprefix("resp_") in installation.shell(IDS).split()


def test_responses_outlive_redis_and_web(installation: Installation, client: Client) -> None:
    first = ask(client, input="one").json
    streamed = ask(client, input="two", previous_response_id=first["id"], stream=True)
    second = streamed.headers["x-generation-id"]
    brief = ask(client_of(installation, "none")).json
    installation.end("worker")
    installation.start_worker()
    before = [get(client, second, rest).body for rest in ("", "/input_items")]
    lose_redis(installation)
    assert get(client, first["id"]).json == first
    assert [get(client, second, rest).body for rest in ("", "/input_items")] == before
    assert get(client, second, "?stream=true").body == streamed.body
    assert events(get(client, second, "?stream=true&starting_after=4")) == events(streamed)[5:]
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert ask(client, input=[{"role": "user", "content": "hi"}, reference]).status == 200
    assert ask(client, input="three", previous_response_id=second).status == 200
    assert [content for role, content in messages(installation) if role == "user"] == ["one", "two", "three"]
    assert "5m0s" in get(client_of(installation, "none"), brief["id"]).error["message"]
    for name in ("another organization", "other", "none", "a test key"):
        stranger = client_of(installation, name)
        for method, rest in [("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("DELETE", "")]:
            assert_unknown(stranger.send(method, f"/v1/responses/{first['id']}{rest}"), first["id"])
        assert_no_previous(ask(stranger, previous_response_id=first["id"]), first["id"])
    assert client.send("DELETE", f"/v1/responses/{first['id']}").json["deleted"] is True
    assert "168h0m0s" in get(client, first["id"]).error["message"]
    assert not is_stored(installation, first["id"])
    assert is_stored(installation, second)


def test_a_response_that_is_deleted_at_once_is_not_stored(installation: Installation, client: Client) -> None:
    response_id = ask(client).json["id"]
    assert client.send("DELETE", f"/v1/responses/{response_id}").status == 200
    lose_redis(installation)
    assert get(client, response_id).status == 404
    assert not is_stored(installation, response_id)


def test_a_response_that_is_written_after_its_deletion_is_not_read(
    installation: Installation, client: Client
) -> None:
    response_id = ask(client).json["id"]
    assert client.send("DELETE", f"/v1/responses/{response_id}").status == 200
    installation.shell(f"""
from uuid import UUID
from chatapi import response_store
content = response_store.Content(b'{{"items":[],"context":{{}}}}', [])
response_store.write(UUID('{response_id.removeprefix("resp_")}'), content)
""")
    for rest in ("", "/input_items"):
        assert get(client, response_id, rest).status == 404
    assert_no_previous(ask(client, previous_response_id=response_id), response_id)


def test_an_end_that_was_not_published_is_the_rows(installation: Installation, client: Client) -> None:
    armed.start(installation, "worker", "settle.after_commit=kill9")
    response = ask(client).json
    installation.processes["worker"].wait(20)
    installation.revive()
    lose_redis(installation)
    found = get(client, response["id"]).json
    assert (found["status"], text_of(found)) == ("completed", text_of(response))
    assert (found["usage"], found["completed_at"]) == (response["usage"], response["completed_at"])


def test_a_repeat_of_a_request_that_was_lost_keeps_its_response(
    installation: Installation, client: Client
) -> None:
    """The web process is killed between commit and enqueue."""
    installation.end("worker")
    armed.start(installation, "web", "admit.after_commit=kill9@1")
    with pytest.raises(ConnectionError):
        ask(client, background=True, idempotency_key="lost")
    installation.end("web")
    installation.start_web()
    repeated = ask(client, background=True, idempotency_key="lost").json
    installation.start_worker()
    wait_for(lambda: get(client, repeated["id"]).json.get("status") == "completed", "the response")
    lose_redis(installation)
    assert get(client, repeated["id"]).json["status"] == "completed"


def test_another_secret_key_is_a_404_and_logged(installation: Installation, client: Client) -> None:
    response_id = ask(client).json["id"]
    lose_redis(installation)
    with installation.another_web(CHATAPI_SECRET_KEY="another" * 10) as other:
        assert_unknown(get(Client(other.url, installation.keys["week"]), response_id), response_id)
    line = f"{response_id} can't be decrypted: it was stored under another CHATAPI_SECRET_KEY"
    assert line in installation.log("web")
    assert get(client, response_id).status == 200


def test_a_full_store_says_store_false(installation: Installation) -> None:
    client = client_of(installation, "another organization")
    response_id = ask(client).json["id"]
    lose_redis(installation)
    rows = f"S.objects.filter(pk='{response_id.removeprefix('resp_')}')"
    fill = f"from chatapi.models import StoredResponse as S; {rows}.update(size_bytes=2**30)"
    installation.shell(fill)
    response: dict[str, Any] = {}

    def is_noticed() -> bool:
        nonlocal response
        response = ask(client).json
        return response["store"] is False

    wait_for(is_noticed, "the full store", timeout_s=20, pause_s=1)
    assert get(client, response["id"]).status == 404
    refused = ask(client, background=True)
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert ask(client_of(installation, "week")).json["store"] is True


def test_responses_go_on_time_and_with_their_setting(installation: Installation, client: Client) -> None:
    old, young = (ask(client).json["id"] for _ in range(2))
    unwanted = ask(client_of(installation, "other")).json["id"]
    lose_redis(installation)
    installation.shell(f"""
from datetime import timedelta
from accounts.models import Project
from chatapi.models import StoredResponse as S
from django.db.models import F
S.objects.filter(pk='{old.removeprefix("resp_")}').update(ended_at=F('ended_at') - timedelta(days=7))
Project.objects.filter(name='other').update(stores_responses_days=0)
""")
    assert get(client, old).status == 404
    keep_house(installation)
    wait_for(lambda: not is_stored(installation, old), "the end of seven days")
    wait_for(lambda: not is_stored(installation, unwanted), "the deletion of what is not wanted any more")
    assert get(client, young).status == 200
