"""An operator and a budget: limits a key, sees that the limit is reached, and raises it."""

import json
import re
from collections.abc import Iterator

import pytest
from openai import APIStatusError, OpenAI
from playwright.sync_api import Page, expect

from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
row, secret = create_key(get_or_create_project("Tests", "default"), name="thrifty")
print(json.dumps([row.pk, secret]))
"""


@pytest.fixture(scope="module")
def key(installation: Installation) -> tuple[int, str]:
    """Return the id and secret of a key."""
    key_id, secret = json.loads(installation.shell(MAKE))
    return key_id, secret


@pytest.fixture(scope="module")
def client(installation: Installation, key: tuple[int, str]) -> Iterator[OpenAI]:
    """Return OpenAI's client with that key."""
    with OpenAI(base_url=f"{installation.url}/openai/v1", api_key=key[1], max_retries=0) as client:
        yield client


def stream(client: OpenAI) -> int:
    """Ask for a stream to its end, which costs more than $0.0001; how many chunks came."""
    chunks = client.chat.completions.create(
        model="sandbox",
        messages=[{"role": "user", "content": "hello [sandbox tokens=50]"}],
        max_tokens=50,
        stream=True,
    )
    return len(list(chunks))


def stream_until_refused(client: OpenAI) -> APIStatusError:
    """Send streams until one is refused; $0.002 pays for at most twenty."""
    for _ in range(21):
        try:
            stream(client)
        except APIStatusError as refused:
            return refused
    pytest.fail("The limit lets everything pass.")


def set_limit(page: Page, dollars: str) -> None:
    page.get_by_label("Limit (USD)", exact=True).fill(dollars)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("successfully")).to_be_visible()


def test_a_limit_is_set_reached_seen_and_raised(
    page: Page, installation: Installation, key: tuple[int, str], client: OpenAI
) -> None:
    key_page = f"{installation.url}/admin/accounts/apikey/{key[0]}/change/"
    page.goto(key_page)
    page.get_by_role("link", name="Add a limit for this key").click()
    page.get_by_label("Period").select_option("day")
    set_limit(page, "0.002")
    refused = stream_until_refused(client)
    assert (refused.status_code, refused.code) == (402, "insufficient_quota")

    page.goto(f"{installation.url}/admin/")
    meter = page.locator(".panel", has_text="Budgets nearest their limit").locator("li", has_text="thrifty")
    expect(meter.locator(".badge.warn")).to_have_text(re.compile(r"^[89]\d %$"))
    expect(meter).to_contain_text("of $0.002")

    page.goto(key_page)
    limit = page.get_by_role("link", name="$0.002", exact=True)
    expect(page.get_by_role("row").filter(has=limit).locator(".badge.warn")).to_have_count(1)
    limit.click()
    set_limit(page, "0.0005")
    for where in (f"{installation.url}/admin/", key_page):
        page.goto(where)
        expect(page.locator(".badge.bad", has_text="reached")).to_be_visible()

    page.get_by_role("link", name="$0.0005", exact=True).click()
    set_limit(page, "0.01")
    assert stream(client) > 50
    page.goto(key_page)
    expect(page.locator(".badge.bad", has_text="reached")).to_have_count(0)
