"""What a client sees whose organization has to pay in advance: 402 without credit, 429 while it is held, 200
after a grant.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.chatapi.http_client import Answer, Client
from tests.chatapi.open_generations import OpenGenerations
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MAX_TOKENS = 450
"""A request with this limit holds 900,000 n$ for its answer and up to 100,000 n$ for its prompt."""
ROOM_FOR_ONE_USD = "0.0015"
REQUIRE = (
    "from accounts.models import Organization; from usage.books import credit; "
    "credit.require(Organization.objects.get(name={name!r}))"
)

Prepaid = Callable[[str], Client]


def grant(installation: Installation, organization: str, usd: str) -> None:
    installation.output_of("grantcredit", "--organization", organization, "--usd", usd, "--reason", "paid")


@pytest.fixture
def prepaid(installation: Installation) -> Prepaid:
    """Makes a client of a new organization that needs credit and has none."""

    def make(organization: str) -> Client:
        key = installation.create_key("--organization", organization)
        installation.shell(REQUIRE.format(name=organization))
        return Client(installation.url, key)

    return make


def budget(client: Client) -> tuple[int, int]:
    """Return the amounts that the key has spent and holds now."""
    found: dict[str, Any] = client.send("GET", "/v1/key").json["budgets"][-1]
    assert (found["scope"], found["period"]) == ("key", "ever")
    return found["posted_nanodollars"], found["pending_nanodollars"]


def assert_without_credit(answer: Answer) -> None:
    assert answer.status == 402
    assert (answer.error["type"], answer.error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "prepaid credit does not cover" in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["retry-after"] is None


def test_an_organization_without_credit_is_refused_free_of_charge_until_a_grant(
    installation: Installation, prepaid: Prepaid, open_generations: OpenGenerations
) -> None:
    client = prepaid("Penniless")
    calls = len(installation.calls("five"))
    for stream in (True, False):
        assert_without_credit(client.complete("five", stream=stream))
    assert (open_generations.new(), len(installation.calls("five")), budget(client)) == ([], calls, (0, 0))
    grant(installation, "Penniless", "10")
    assert client.complete("five").status == 200
    assert (len(installation.calls("five")), budget(client)) == (calls + 1, (7 * 1_000 + 5 * 2_000, 0))


def test_credit_held_by_a_running_request_is_429_until_that_ends(
    installation: Installation, prepaid: Prepaid
) -> None:
    client = prepaid("Thrifty")
    grant(installation, "Thrifty", ROOM_FOR_ONE_USD)
    calls = len(installation.calls("five"))
    with client.asking("steady", stream=True, max_tokens=MAX_TOKENS) as first:
        next(first.texts())
        before = budget(client)
        refused = client.complete("five", max_tokens=MAX_TOKENS)
        assert budget(client) == before
    assert refused.status == 429
    assert (refused.error["type"], refused.error["code"]) == ("rate_limit_error", "budget_in_flight")
    assert "prepaid credit is held" in refused.error["message"]
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("1", "1000")
    assert refused.headers["x-should-retry"] is None
    wait_for(lambda: budget(client)[1] == 0, "the release of the hold")
    assert len(installation.calls("five")) == calls
    assert client.complete("five", max_tokens=MAX_TOKENS).status == 200


def test_what_is_spent_comes_off_the_credit_until_that_covers_no_request_any_more(
    installation: Installation, prepaid: Prepaid
) -> None:
    client = prepaid("Frugal")
    grant(installation, "Frugal", ROOM_FOR_ONE_USD)
    answers = [client.complete("five", max_tokens=MAX_TOKENS) for _ in range(40)]
    completed = [answer.status for answer in answers].count(200)
    assert [answer.status for answer in answers] == [200] * completed + [402] * (40 - completed)
    assert_without_credit(answers[-1])
    assert budget(client) == (completed * 17_000, 0)
    assert 500_000 < completed * 17_000 <= 1_500_000 - 900_000 + 17_000
