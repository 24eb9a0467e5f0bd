"""Labels that Django would make from the names of columns, and that have plainer ones."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

import chatapi.urls  # noqa: F401  it loads the admin's pages, which have the labels
from accounts import keys
from accounts.audit import recorder
from accounts.audit.recorder import Actor
from tests.admin_pages import text
from tests.cast import Person, run
from usage.models import Credit


@pytest.mark.parametrize(
    ("path", "words", "avoided"),
    [
        ("accounts/apikey/add/", "Can read the organization's usage", "Is admin"),
        ("usage/credit/", "Prepaid only", "Is required"),
        ("requests/", "Date means", "Time of"),
        ("requests/", "Token count by", "Tokens from"),
        ("live/", "reserved", "Held"),
    ],
)
def test_a_page_has_the_plainer_words(
    root: Client, alice: Person, path: str, words: str, avoided: str
) -> None:
    Credit.objects.create(organization=alice.project.organization)
    shown = text(root.get(f"/admin/{path}")).replace("&#x27;", "'")
    assert (words in shown, avoided in shown) == (True, False)


# Words of pages that first-time readers understand, of an installation with one request.
WORDS = {
    "": [
        "Requests count when they finish", "Longest running", "Worker crashes", "Could not be started",
        "No earlier data",
    ],
    "usage/budgetlimit/add/": ["Only a warning: requests still pass.", "Total"],
    "accounts/ratelimit/add/": ["Who (choose one)", "All models share one limit.", "0 blocks everything."],
    "accounts/apikey/add/": ["Leave empty to allow everything"],
    "chatapi/servedmodel/add/": ["Maximum and default for each answer"],
    "chatapi/deployment/add/": ["Environment variable with the API key", "Allow image URLs"],
    "usage/price/add/": ["USD per million cached input tokens. Empty: same as input."],
    "usage/discount/add/": ["Discount in percent"],
    "accounts/member/add/": ["Existing users are added at once"],
    "usage/credit/": ["No prepaid credit yet."],
}  # fmt: skip


def test_pages_have_the_words_that_first_time_readers_understand(root: Client, alice: Person) -> None:
    run(alice)
    shown = {path: text(root.get(f"/admin/{path}", follow=True)).replace("&#x27;", "'") for path in WORDS}
    missing = [(path, words) for path, own in WORDS.items() for words in own if words not in shown[path]]
    assert missing == []


def test_a_receipt_has_them(root: Client, alice: Person) -> None:
    shown = text(root.get(reverse("admin:request", args=[run(alice)])))
    for words in (
        *("Timestamps", "Token count by", "Raw record", "Change history"),
        *("Finished normally", "Total, at the price when it started", "Request charged"),
    ):
        assert words in shown, words


def test_the_audit_log_names_a_key_and_its_previous_one(root: Client, alice: Person) -> None:
    with recorder.acting(lambda: Actor(None, "alice")):
        keys.rotate(alice.api_key, timezone.now() + timedelta(hours=1))
    shown = text(root.get("/admin/audit/"))
    assert ("previous key" in shown, "public" in shown) == (True, False)
