"""What a client with a limited budget sees: 402 and 429, never more admitted than fits, and its spending in
/v1/key.
"""

import json
import re
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MAX_TOKENS = 450
"""A request with this limit holds 900,000 n$ for its answer and up to 100,000 n$ for its prompt."""


def day_of(client: Client) -> dict[str, Any]:
    """Return the key's own budget of this day."""
    budgets = client.send("GET", "/v1/key").json["budgets"]
    (budget,) = [budget for budget in budgets if (budget["scope"], budget["period"]) == ("key", "day")]
    found: dict[str, Any] = budget
    return found


def wait_until_nothing_is_held(client: Client) -> None:
    wait_for(lambda: bool(day_of(client)["pending_nanodollars"] == 0), "the release of the holds")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("whose", "shown"), [("key", "API key"), ("project", "project"), ("organization", "organization")]
)
def test_a_budget_without_room_is_402(
    installation: Installation, keys: dict[str, str], whose: str, shown: str, stream: bool
) -> None:
    client = Client(installation.url, keys[f"poor {whose}"])
    calls = len(installation.calls("five"))
    answer = client.complete("five", stream=stream)
    assert answer.status == 402
    assert (answer.error["type"], answer.error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert f"Your {shown}'s budget" in answer.error["message"]
    assert re.search(r": up to \$0\.\d+, and \$0(\.\d+)? is left\.", answer.error["message"])
    wait_for(
        lambda: f"{answer.headers['x-request-id']} of key " in installation.log("web"),
        "the operator's warning",
    )
    assert answer.headers["x-should-retry"] == "false"
    assert len(installation.calls("five")) == calls


@pytest.mark.parametrize(
    ("whose", "reset"),
    [("key", timedelta(days=1)), ("project", timedelta(days=31)), ("organization", None)],
)
def test_a_402_tells_when_the_budget_resets(
    installation: Installation, keys: dict[str, str], whose: str, reset: timedelta | None
) -> None:
    """A key's day, a project's month, and an organization's total, which never resets."""
    today = datetime.now(UTC).date()
    answer = Client(installation.url, keys[f"poor {whose}"]).complete("five")
    if reset is None:
        assert "resets" not in answer.error["message"]
        return
    first = today if whose == "key" else today.replace(day=1)
    day = first + reset if whose == "key" else (first + reset).replace(day=1)
    assert answer.error["message"].endswith(f" It resets on {day} at 00:00 (UTC).")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/openai/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/embeddings", {"input": "hello", "model": "embeds"}),
    ],
)
def test_each_protocol_tells_what_costs_less_and_when_the_budget_resets(
    installation: Installation, keys: dict[str, str], path: str, body: dict[str, Any]
) -> None:
    sent = json.dumps({"model": "five", **body}).encode()
    answer = Client(installation.url, keys["poor project"]).send("POST", path, sent)
    assert answer.status == 402
    cheaper = r"is left\. A shorter prompt or a lower limit of output tokens costs less\."
    reset = r"It resets on \d{4}-\d\d-01 at 00:00 \(UTC\)\."
    assert re.search(f"{cheaper} {reset}", answer.json["error"]["message"])


def test_a_test_key_costs_nothing_however_poor_it_is(
    installation: Installation, keys: dict[str, str]
) -> None:
    assert Client(installation.url, keys["poor tester"]).complete("five").status == 200


def test_a_budget_held_by_a_running_request_is_429_until_that_ends(
    installation: Installation, keys: dict[str, str]
) -> None:
    client = Client(installation.url, keys["room for one"])
    with client.asking("steady", stream=True, max_tokens=MAX_TOKENS) as first:
        next(first.texts())
        refused = client.complete("five", max_tokens=MAX_TOKENS)
    assert refused.status == 429
    assert (refused.error["type"], refused.error["code"]) == ("rate_limit_error", "budget_in_flight")
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("1", "1000")
    wait_until_nothing_is_held(client)
    assert client.complete("five", max_tokens=MAX_TOKENS).status == 200


def test_of_many_at_once_exactly_as_many_are_admitted_as_fit(
    installation: Installation, keys: dict[str, str]
) -> None:
    client = Client(installation.url, keys["room for four"])
    with ExitStack() as connections:
        asked = [
            connections.enter_context(client.asking("steady", stream=True, max_tokens=MAX_TOKENS))
            for _ in range(12)
        ]
        statuses = [exchange.response.status for exchange in asked]
        assert sorted(statuses) == [200] * 4 + [429] * 8
        budget = day_of(client)
        assert 4 * 900_000 < budget["pending_nanodollars"] <= budget["limit_nanodollars"]
        ids = [
            exchange.response.headers["x-generation-id"]
            for exchange in asked
            if exchange.response.status == 200
        ]
    assert_spent(client, installation, ids)


def assert_spent(client: Client, installation: Installation, ids: list[str]) -> None:
    """Check that all holds are released and that budgets and receipts agree."""
    amounts = [installation.receipt(generation_id)["amount_nanodollars"] for generation_id in ids]
    wait_until_nothing_is_held(client)
    assert day_of(client)["posted_nanodollars"] == sum(amounts)


def test_a_key_learns_what_it_has_spent(installation: Installation, client: Client) -> None:
    wait_until_nothing_is_held(client)
    before = day_of(client)["posted_nanodollars"]
    client.complete("five")
    assert day_of(client)["posted_nanodollars"] - before == 7 * 1_000 + 5 * 2_000


def test_a_refused_request_holds_and_costs_nothing(installation: Installation, keys: dict[str, str]) -> None:
    client = Client(installation.url, keys["poor key"])
    client.complete("five")
    budget = day_of(client)
    assert (budget["pending_nanodollars"], budget["posted_nanodollars"]) == (0, 0)
    assert budget["limit_nanodollars"] == 1
