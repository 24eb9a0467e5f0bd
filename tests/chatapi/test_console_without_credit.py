"""The console of an organization without credit says so before a request is refused, and shows refusals."""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.authentication import look_up
from accounts.models import Organization, Role
from chatapi.models import ServedModel
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi.console_pages import as_role
from tests.fake_stripe import Stripe
from usage.books import credit
from usage.rollups import refused_requests
from usage.rollups.refused_requests import Refusal

SENTENCE = "Your organization has no credit."
PAGES = ("start", "keys/new", "playground")


@pytest.fixture
def prepaid(acme: Organization, small: ServedModel) -> Organization:
    """Return an organization as `sign-up` makes it."""
    credit.require(acme)
    return acme


def path(organization: Organization, page: str) -> str:
    return f"/console/{organization.pk}/{page}"


def make_key(client: Client, alice: Person, **fields: str) -> Any:
    sent = {"project": alice.project.pk, "name": "first", **fields}
    return client.post(path(alice.project.organization, "keys/new"), sent)


def test_the_pages_that_lead_to_a_request_say_that_there_is_no_credit(
    prepaid: Organization, alice: Person
) -> None:
    client = client_of(alice.user)
    for page in PAGES:
        shown = text(client.get(path(prepaid, page)))
        assert f"{SENTENCE} Requests with live keys" in shown, page
        assert "until the operator of this service grants some" in shown, page
    assert SENTENCE in text(make_key(client, alice))
    assert SENTENCE not in text(make_key(client, alice, test_key="on")), "a test key is not refused"
    credit.grant(prepaid, 10**9, credit.Note("a test", "tess"))
    for page in PAGES:
        assert SENTENCE not in text(client.get(path(prepaid, page))), page
    assert SENTENCE not in text(make_key(client, alice))


def test_an_organization_that_pays_later_reads_nothing_of_credit(acme: Organization, alice: Person) -> None:
    for page in PAGES:
        assert SENTENCE not in text(client_of(alice.user).get(path(acme, page))), page


@pytest.mark.parametrize(
    ("role", "until"),
    [
        (Role.OWNER, "until you pay some in at Credit"),
        (Role.MEMBER, "until an owner or admin of your organization pays some in"),
    ],
)
def test_people_read_who_can_pay(
    stripe: Stripe, prepaid: Organization, alice: Person, role: Role, until: str
) -> None:
    client = as_role(alice, role)
    for page in PAGES:
        assert until in text(client.get(path(prepaid, page))), page


def test_start_leads_to_a_test_key_for_the_first_request(prepaid: Organization, alice: Person) -> None:
    client = client_of(alice.user)
    new_key = f"{path(prepaid, 'keys/new')}?project={alice.project.pk}&amp;test=on"
    shown = client.get(path(prepaid, "start")).content.decode()
    assert f'<a href="{new_key}">new test key</a>' in shown
    assert "Bearer YOUR_TEST_KEY" in shown
    form = client.get(new_key.replace("&amp;", "&")).content.decode()
    assert re.search(r'<input type="checkbox" name="test_key"[^>]* checked', form)
    form = client.get(path(prepaid, "keys/new")).content.decode()
    assert not re.search(r'<input type="checkbox" name="test_key"[^>]* checked', form)
    credit.grant(prepaid, 10**9, credit.Note("a test", "tess"))
    assert "Bearer YOUR_KEY" in client.get(path(prepaid, "start")).content.decode()


def test_a_viewer_is_led_to_no_key(prepaid: Organization, alice: Person) -> None:
    shown = text(as_role(alice, Role.VIEWER).get(path(prepaid, "start")))
    assert f"{SENTENCE} Requests with live keys" in shown
    assert "new test key" not in shown


def test_start_shows_what_was_refused_and_why(prepaid: Organization, alice: Person, charlie: Person) -> None:
    client = client_of(alice.user)
    assert "Refused" not in text(client.get(path(prepaid, "start")))
    key_id = alice.api_key.pk
    counts = {Refusal(key_id, 402, "insufficient_quota"): 2, Refusal(key_id, 404, "model_not_found"): 1}
    refused_requests.add(timezone.now(), [counts, {Refusal(charlie.api_key.pk, 403, "theirs"): 7}])
    shown = text(client.get(path(prepaid, "start")))
    assert "2 requests with the key alice: 402 insufficient quota (no credit)" in shown
    assert "1 request with the key alice: 404 model not found" in shown
    assert "theirs" not in shown


def test_the_playground_has_a_free_key_beside_the_live_one(prepaid: Organization, alice: Person) -> None:
    client = client_of(alice.user)
    assert 'id="test_key" aria-describedby="test-key-help" checked' in (
        client.get(path(prepaid, "playground")).content.decode()
    )

    def caller(**fields: str) -> Any:
        sent = {"project": alice.project.pk, **fields}
        return look_up(client.post(path(prepaid, "playground/key"), sent).json()["key"])

    live, test, again = caller(), caller(test_key="on"), caller(test_key="on")
    assert [each.is_test for each in (live, test, again)] == [False, True, True]
    assert test.api_key_id == again.api_key_id != live.api_key_id
