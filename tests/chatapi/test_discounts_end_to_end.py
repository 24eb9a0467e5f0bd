"""What an organization with a discount sees: less is held, less is charged, and its receipts show the price
that it pays.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
from usage.database.clock import database_now
from usage.models import Discount

projects = {name: get_or_create_project(name, "default") for name in ("Patrons", "Passers-by")}
Discount.objects.create(
    organization=projects["Patrons"].organization, basis_points=2_500, effective_from=database_now()
)
print(json.dumps({name: create_key(project, name=name)[1] for name, project in projects.items()}))
"""


@pytest.fixture(scope="module")
def clients(installation: Installation) -> Iterator[dict[str, Client]]:
    """Return clients of two organizations, one with a discount of a quarter that is older than the web
    process's first read.
    """
    keys = json.loads(installation.shell(MAKE))
    with installation.another_web() as web:
        yield {name: Client(web.url, key) for name, key in keys.items()}


def budget(client: Client) -> dict[str, Any]:
    """Return the amounts that the key has spent and holds now."""
    found: dict[str, Any] = client.send("GET", "/v1/key").json["budgets"][-1]
    assert (found["scope"], found["period"]) == ("key", "ever")
    return found


def held(client: Client) -> int:
    """Return the amount that is held while one request runs."""
    with client.asking("steady", stream=True, max_tokens=450) as exchange:
        next(exchange.texts())
        pending: int = budget(client)["pending_nanodollars"]
    wait_for(lambda: bool(budget(client)["pending_nanodollars"] == 0), "the release of the hold")
    return pending


def test_a_quarter_less_is_held(clients: dict[str, Client]) -> None:
    full = held(clients["Passers-by"])
    assert full > 450 * 2_000
    assert held(clients["Patrons"]) * 4 == full * 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("whose", "input_usd", "output_usd", "lines"),
    [("Patrons", "0.75", "1.5", [5_250, 7_500]), ("Passers-by", "1", "2", [7_000, 10_000])],
)
def test_an_organization_with_a_discount_is_charged_less_and_no_other(
    clients: dict[str, Client], whose: str, input_usd: str, output_usd: str, lines: list[int], stream: bool
) -> None:
    client = clients[whose]
    answer = client.complete("five", stream=stream)
    receipt = client.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json
    assert [item["price_per_mtok_usd"] for item in receipt["line_items"]] == [input_usd, output_usd]
    assert [item["amount_nanodollars"] for item in receipt["line_items"]] == lines
    assert receipt["amount_nanodollars"] == receipt["net_nanodollars"] == sum(lines)


def test_what_is_spent_is_what_the_discounted_receipts_say(clients: dict[str, Client]) -> None:
    client = clients["Patrons"]
    before = budget(client)["posted_nanodollars"]
    client.complete("five")
    assert budget(client)["posted_nanodollars"] - before == 12_750
