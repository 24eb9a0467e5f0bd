"""What the hot routes refuse a known key is counted within seconds, and when the web process ends; a served
request is not.
"""

import json
import signal

import pytest

from accounts import api_keys
from tests.bad_input.bodies import CHAT
from tests.chatapi.http_client import Client, clients_of
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MAKE = """
import json
from django.utils import timezone
from accounts.keys import create_key, get_or_create_project
from accounts.models import RateLimit
from usage.models import BudgetLimit
project = get_or_create_project("Refused", "default")
names = ("narrow", "limited", "ending", "wrong", "revoked", "poor")
rights = dict.fromkeys(names, {}) | {"narrow": {"scopes": ["models"]}}
made = {name: create_key(project, name=f"refused-{name}", **each) for name, each in rights.items()}
RateLimit.objects.create(api_key=made["limited"][0], requests_per_minute=1)
BudgetLimit.objects.create(scope="key", scope_id=made["poor"][0].pk, period="day", limit_nanodollars=1)
made["revoked"][0].revoked_at = timezone.now()
made["revoked"][0].save()
print(json.dumps({name: secret for name, (_, secret) in made.items()}))
"""
REASONS = """
import json
from usage.rollups.refused_requests import key_refusal_totals
print(json.dumps(key_refusal_totals()))
"""
COUNTED = """
import json
from usage.models import RefusedRequests
rows = RefusedRequests.objects.filter(api_key__name="refused-{name}")
print(json.dumps(sorted([row.status, row.code, row.requests] for row in rows)))
"""


@pytest.fixture(scope="module")
def made(installation: Installation) -> dict[str, Client]:
    """Return clients whose keys only this module uses."""
    return clients_of(installation, MAKE)


def counted(installation: Installation, name: str) -> list[list[object]]:
    rows: list[list[object]] = json.loads(installation.shell(COUNTED.format(name=name)))
    return rows


def test_every_kind_of_refusal_is_counted_by_its_code(
    installation: Installation, made: dict[str, Client]
) -> None:
    wrong, narrow, limited = made["wrong"], made["narrow"], made["limited"]
    codes = [
        answer.error["code"] or answer.error["type"]
        for answer in (wrong.send("POST", CHAT, b"{"), wrong.complete("no-such-model"))
    ]
    assert wrong.complete("no-such-model").status == 404
    assert wrong.send("POST", CHAT, b"{}", content_type="text/plain").status == 415
    assert narrow.complete("five").status == 403
    broke = made["poor"].complete("five")
    assert broke.status == 402
    assert [limited.complete("five").status for _ in range(3)] == [200, 429, 429]
    wait_for(
        lambda: counted(installation, "limited") == [[429, "rate_limit_exceeded", 2]],
        "the counts",
        timeout_s=20,
    )
    assert counted(installation, "narrow") == [[403, "permission_denied", 1]]
    assert counted(installation, "poor") == [[402, broke.error["code"], 1]]
    assert counted(installation, "wrong") == [
        [400, codes[0], 1],
        [404, codes[1], 2],
        [415, "unsupported_media_type", 1],
    ]


def test_requests_without_a_valid_key_are_counted_on_every_route(
    installation: Installation, made: dict[str, Client]
) -> None:
    before = json.loads(installation.shell(REASONS))
    unknown = Client(installation.url, api_keys.generate(is_test=False))
    for client in (made["revoked"], unknown, Client(installation.url, "nonsense")):
        assert client.complete("five").status == 401
        assert client.send("GET", "/v1/models").status == 401
    expected = {"revoked_key": 2, "unknown_key": 2, "malformed_key": 2}

    def new() -> dict[str, int]:
        after = json.loads(installation.shell(REASONS))
        return {reason: after[reason] - before[reason] for reason in expected}

    wait_for(lambda: new() == expected, "the counts", timeout_s=20)
    assert counted(installation, "revoked") == [[401, "revoked_key", 2]]


def test_a_process_that_ends_loses_none(installation: Installation, made: dict[str, Client]) -> None:
    with installation.another_web() as another:
        refused = [Client(another.url, made["ending"].key).complete("no-such-model").status for _ in range(3)]
        assert refused == [404, 404, 404]
        assert another.end("web", signal.SIGTERM) == 0
    assert counted(installation, "ending") == [[404, "model_not_found", 3]]
