"""End users: where their names come from, and which pages and routes show them."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.chatapi.http_client import HELLO, Answer, Client, clients_of
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
keys = {}
from accounts.models import EndUser, RateLimit
from usage.models import BudgetLimit
settings = {
    "plain": {},
    "hashing": {"hashes_end_users": True, "stores_metadata": True},
    "repeating": {"counts_end_users": True},
    "counting": {"counts_end_users": True},
}
for name, each in settings.items():
    project = get_or_create_project("People", name)
    type(project).objects.filter(pk=project.pk).update(**each)
    ann = EndUser.objects.create(project=project, name="ann")
    BudgetLimit.objects.create(scope="end_user", scope_id=ann.pk, period="month", limit_nanodollars=0)
    keys[name] = create_key(project, name=name)[1]
RateLimit.objects.create(
    project=project, each_end_user=True, requests_per_day=2, tokens_per_day=10**9)
RateLimit.objects.create(
    end_user=EndUser.objects.create(project=project, name="eve"), requests_per_day=1)
print(json.dumps(keys))
"""


@pytest.fixture(scope="module")
def clients(installation: Installation) -> dict[str, Client]:
    return clients_of(installation, MAKE)


def end_user(client: Client, path: str = "chat/completions", **parameters: Any) -> Any:
    """Return the end user in the receipt of a request with these parameters."""
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": "hello"}
    body = json.dumps({"model": "five"} | prompt | parameters).encode()
    answer = client.send("POST", f"/v1/{path}", body)
    assert answer.status == 200, answer.body
    return client.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json["end_user"]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_the_body_names_the_end_user(clients: dict[str, Client], path: str) -> None:
    client = clients["plain"]
    assert end_user(client, path) is None
    assert end_user(client, path, user="") is None
    assert end_user(client, path, user="ann@example.com") == "ann@example.com"
    assert end_user(client, path, user="ü" * 128) == "ü" * 128
    if "chat" in path:
        assert end_user(client, path, user="ann", safety_identifier="hashed-ann") == "hashed-ann"


def message(client: Client, user_id: str, **headers: str) -> Answer:
    """Send a Messages request for this person and return the answer."""
    body = {"model": "five", "max_tokens": 9, "messages": HELLO, "metadata": {"user_id": user_id}}
    return client.send("POST", "/v1/messages", json.dumps(body).encode(), **headers)


def test_messages_name_the_end_user_in_their_metadata(clients: dict[str, Client]) -> None:
    answer = message(clients["plain"], "ann@example.com")
    path = f"/v1/generations/{answer.headers['x-generation-id']}"
    assert clients["plain"].send("GET", path).json["end_user"] == "ann@example.com"
    refused = message(clients["counting"], "ann")
    assert (refused.status, refused.json["error"]["type"]) == (402, "billing_error")
    assert "The end user's budget" in refused.json["error"]["message"]


def test_limits_are_in_anthropics_headers_too(clients: dict[str, Client]) -> None:
    answers = [message(clients["counting"], "mia") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    for answer, remaining in zip(answers, ("1", "0", "0"), strict=True):
        found = {
            name: answer.headers[f"anthropic-ratelimit-requests-{name}"] or ""
            for name in ("limit", "remaining", "reset")
        }
        assert (found["limit"], found["remaining"]) == ("2", remaining)
        assert datetime.fromisoformat(found["reset"]) > datetime.now(UTC)
        assert answer.headers["x-ratelimit-remaining-requests"] == remaining
    for answer in answers:  # a limit of tokens counts both kinds
        for kind in ("tokens", "input-tokens", "output-tokens"):
            prefix = f"anthropic-ratelimit-{kind}-"
            assert answer.headers[prefix + "limit"] == "1000000000"
            assert answer.headers[prefix + "remaining"] == answer.headers["x-ratelimit-remaining-tokens"]
            datetime.fromisoformat(answer.headers[prefix + "reset"] or "")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("responses/input_tokens", {"model": "five", "input": "hi", "user": "zoe"}),
        ("messages/count_tokens", {"model": "five", "messages": HELLO, "metadata": {"user_id": "uma"}}),
    ],
)
def test_to_count_tokens_takes_from_the_end_users_limits(
    clients: dict[str, Client], path: str, body: dict[str, Any]
) -> None:
    client = clients["counting"]
    answers = [client.send("POST", f"/v1/{path}", json.dumps(body).encode()) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert "for this end user" in answers[2].json["error"]["message"]
    others = json.dumps(body | {"user": "yan", "metadata": {"user_id": "yan"}}).encode()
    assert client.send("POST", f"/v1/{path}", others).status == 200


def test_a_header_names_the_end_user(installation: Installation, clients: dict[str, Client]) -> None:
    with installation.another_web(CHATAPI_END_USER_HEADER="x-person") as another:
        client = Client(another.url, clients["plain"].key)
        for sent, name in ((b"header", "header"), ("müller".encode(), "müller"), (b"m\xfcller", "müller")):
            answer = message(client, "body", x_person=sent.decode("latin-1"))
            path = f"/v1/generations/{answer.headers['x-generation-id']}"
            assert client.send("GET", path).json["end_user"] == name


def test_a_name_that_is_long_or_unprintable_or_to_be_hidden_is_a_digest(clients: dict[str, Client]) -> None:
    client = clients["plain"]
    stored = {end_user(client, user=name) for name in ("a" * 129, "a" * 130, "a\nb", "a\tb", "a\u202eb")}
    stored |= {end_user(clients["hashing"], user=name) for name in ("ann", "bob")}
    assert len(stored) == 7
    assert all(len(name) == 71 and name.startswith("sha256:") for name in stored)
    assert end_user(clients["hashing"], user="ann") in stored


def test_a_refusal_says_that_it_is_the_end_users_budget(clients: dict[str, Client]) -> None:
    client = clients["counting"]
    refused = client.complete("five", user="ann")
    assert (refused.status, refused.error["code"]) == (402, "insufficient_quota")
    assert refused.error["message"].startswith("The end user's budget of this month has no room for")
    assert client.complete("five", user="bob").status == 200
    assert client.complete("five").status == 200
    assert client.complete("five").status == 200
    for other in ("plain", "hashing"):  # they do not count their end users
        assert [clients[other].complete("five", user="ann").status for _ in range(2)] == [200, 200]


BUDGETS = """
import json, sys
from accounts.models import EndUser
from usage.models import Budget
ids = EndUser.objects.filter(name="NAME").values("id")
rows = Budget.objects.filter(scope="end_user", scope_id__in=ids)
print(json.dumps(sorted(rows.values_list("period", "posted_nanodollars", "pending_nanodollars"))))
"""
REPEATED: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": HELLO, "stream": True, "user": "NAME"},
    "responses": {"input": "hello", "stream": True, "safety_identifier": "NAME"},
    "messages": {"messages": HELLO, "max_tokens": 9, "stream": True, "metadata": {"user_id": "NAME"}},
    "embeddings": {"input": "hello", "user": "NAME"},
}


@pytest.mark.parametrize("path", REPEATED)
def test_what_is_repeated_or_resumed_counts_once_for_its_end_user(
    path: str, clients: dict[str, Client], installation: Installation
) -> None:
    client, name = clients["repeating"], path.replace("/", "-")
    model = "sandbox-embedding" if path == "embeddings" else "five"
    body = json.dumps({"model": model} | REPEATED[path]).replace("NAME", name).encode()

    def ask(_: int) -> Answer:
        return client.send("POST", f"/v1/{path}", body, idempotency_key=name)

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(ask, range(5)))
    answers.append(ask(0))
    assert {answer.status for answer in answers} == {200}
    (generation_id,) = {answer.headers["x-generation-id"] or "" for answer in answers}
    if path != "embeddings":
        assert client.send("GET", f"/v1/generations/{generation_id}/stream").status == 200
    wait_for(
        lambda: client.send("GET", f"/v1/generations/{generation_id}").json["state"] == "settled", "the end"
    )
    cost = client.send("GET", f"/v1/generations/{generation_id}").json["amount_nanodollars"]
    budgets = json.loads(installation.shell(BUDGETS.replace("NAME", name)))
    assert cost > 0
    assert budgets == [[period, cost, 0] for period in ("day", "ever", "month")]


def test_each_end_user_has_its_own_rate_limit(clients: dict[str, Client]) -> None:
    client = clients["counting"]
    assert [client.complete("five", user="kim").status for _ in range(3)] == [200, 200, 429]
    refused = client.complete("five", user="kim")
    assert refused.error["code"] == "rate_limit_exceeded"
    assert "2 requests per day for this end user" in refused.error["message"]
    assert [client.complete("five", user="eve").status for _ in range(2)] == [200, 429]
    assert [client.complete("five", user="lee").status, client.complete("five").status] == [200, 200]


@pytest.mark.parametrize(
    ("path", "prompt"), [("chat/completions", {"messages": HELLO}), ("responses", {"input": "a"})]
)
def test_metadata_is_kept_by_projects_that_want_it(
    clients: dict[str, Client], path: str, prompt: dict[str, Any]
) -> None:
    body = json.dumps({"model": "five", "metadata": {"team": "red"}} | prompt).encode()
    kept = {}
    for name in ("plain", "hashing"):
        answer = clients[name].send("POST", f"/v1/{path}", body)
        receipt = f"/v1/generations/{answer.headers['x-generation-id']}"
        kept[name] = clients[name].send("GET", receipt).json["metadata"]
    assert kept == {"plain": None, "hashing": {"team": "red"}}
