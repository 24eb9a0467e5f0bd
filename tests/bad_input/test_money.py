"""Requests that would cost what nobody has, or nothing where they should cost something.

Who leaves in the middle: tests/chatapi/test_client_leaves.py. Parallel requests at a limit:
tests/chatapi/test_budgets_end_to_end.py and tests/usage/test_ledger.py. Retries with an Idempotency-Key
belong to that header's issue.
"""

from typing import Any

import pytest

from tests.bad_input.bodies import CHAT, POSTED, SMALL_REQUEST, TEXT, body_for, chat, refusal, text
from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

NO_ROOM = (402, "insufficient_quota")


def client_of(installation: Installation, name: str) -> Client:
    """Return a client of the key with this story."""
    return Client(installation.url, installation.keys[name])


def spent(client: Client) -> tuple[int, int]:
    """Return the amounts that the key's day holds and has spent."""
    (day,) = [
        each
        for each in client.send("GET", "/v1/key").json["budgets"]
        if (each["scope"], each["period"]) == ("key", "day")
    ]
    return day["pending_nanodollars"], day["posted_nanodollars"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("members", [{}, {"max_tokens": 1}, {"n": 128}, {"max_tokens": 2**31 - 1}], ids=str)
def test_a_limit_of_0_lets_nothing_in(
    installation: Installation, members: dict[str, Any], stream: bool
) -> None:
    penniless, calls = client_of(installation, "penniless"), len(installation.calls("five"))
    answer = penniless.send("POST", CHAT, chat(stream=stream, **members))
    assert refusal(answer)[:2] == NO_ROOM
    assert answer.headers["x-should-retry"] == "false"
    assert penniless.send("POST", TEXT, text(stream=stream, **members)).status == 402
    assert (spent(penniless), len(installation.calls("five"))) == ((0, 0), calls)


def test_a_nanodollar_decides(installation: Installation) -> None:
    short, enough = client_of(installation, "one nanodollar short"), client_of(installation, "exactly enough")
    assert refusal(short.send("POST", CHAT, chat(**SMALL_REQUEST)))[:2] == NO_ROOM
    assert enough.send("POST", CHAT, chat(**SMALL_REQUEST)).status == 200
    wait_for(lambda: spent(enough)[0] == 0, "the settlement")
    assert refusal(enough.send("POST", CHAT, chat(**SMALL_REQUEST)))[:2] == NO_ROOM
    assert spent(short) == (0, 0)


DEARER: list[dict[str, Any]] = [
    {"n": 2},
    {"max_tokens": 101},
    {"max_tokens": None},
    {"max_tokens": 1, "max_completion_tokens": 1_000},
]
DEARER += [
    {"messages": [{"role": "user", "content": "hello" + "!" * 500}]},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
]


@pytest.mark.parametrize("members", DEARER, ids=lambda members: str(members)[:40])
def test_everything_that_can_cost_more_is_held_for(
    installation: Installation, members: dict[str, Any]
) -> None:
    answer = client_of(installation, "one nanodollar short").send(
        "POST", CHAT, chat(**SMALL_REQUEST | members)
    )
    assert refusal(answer)[:2] == NO_ROOM


@pytest.mark.parametrize(
    "members", [{"n": 2}, {"best_of": 2}, {"prompt": ["hello", "hello"]}, {"max_tokens": 1_000}], ids=str
)
def test_text_completions_hold_for_every_sample(installation: Installation, members: dict[str, Any]) -> None:
    answer = client_of(installation, "one nanodollar short").send(
        "POST", TEXT, text(**SMALL_REQUEST | members)
    )
    assert refusal(answer)[:2] == NO_ROOM


@pytest.mark.parametrize("path", POSTED)
def test_a_ticket_for_what_nobody_can_pay_is_refused_when_it_is_used(
    installation: Installation, path: str
) -> None:
    penniless = client_of(installation, "penniless")
    answer = penniless.send("POST", path, body_for(path))
    if answer.status == 201:
        answer = penniless.send("GET", answer.json["url"])
    assert refusal(answer)[:2] == NO_ROOM


@pytest.mark.parametrize("path", POSTED)
def test_no_price_no_service(client: Client, path: str) -> None:
    answer = client.send("POST", path, body_for(path).replace(b"five", b"unpriced"))
    assert (answer.status, answer.error["code"]) == (503, "model_not_priced")
    assert answer.headers["x-should-retry"] == "false"
    assert "x-generation-id" not in answer.headers


def test_a_model_with_an_explicit_price_of_0_is_free(installation: Installation) -> None:
    answer = client_of(installation, "penniless").complete("free")
    assert answer.status == 200
    assert (
        client_of(installation, "penniless")
        .send("GET", f"/v1/generations/{answer.json['id']}")
        .json["amount_nanodollars"]
        == 0
    )


def test_the_largest_max_tokens_is_cut_to_the_models_own(client: Client, installation: Installation) -> None:
    assert client.send("POST", CHAT, chat(max_tokens=2**31 - 1)).status == 200
    assert installation.calls("five")[-1]["body"]["max_tokens"] == 1_024


def test_128_choices_are_charged_as_128(client: Client, installation: Installation) -> None:
    answer = client.send("POST", CHAT, chat(n=128, max_tokens=5))
    assert (answer.status, len(answer.json["choices"])) == (200, 128)
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert receipt["usage"]["completion_tokens"] == answer.json["usage"]["completion_tokens"] == 128 * 5


def test_a_stop_sequence_does_not_hide_what_was_generated(client: Client, installation: Installation) -> None:
    """The hold is at least the charge, with any stop sequence."""
    answer = client.send("POST", CHAT, chat(stop=[" ", "\n", "e", "a"], max_tokens=5))
    assert answer.status == 200
    assert installation.receipt(answer.headers["x-generation-id"])["usage"] == answer.json["usage"]
