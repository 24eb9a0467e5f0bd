"""A founder without credit reads why requests are refused, and gets on with a test key."""

import pytest
from openai import APIStatusError, OpenAI
from playwright.sync_api import Page, expect

from tests.browser.conftest import PASSPHRASE, sign_in
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]

FOUNDER = """
from django.contrib.auth.models import User
from accounts.models import Member, Organization
from usage.books import credit
row = Organization.objects.create(name="Newcomers of {name}")
credit.require(row)
user = User.objects.create_user("{name}", password="{password}")
Member.objects.create(organization=row, user=user, role="owner")
print(row.pk)
"""


def found(installation: Installation, name: str) -> str:
    """Make an organization without credit; return the URL of its console."""
    script = FOUNDER.format(name=name, password=PASSPHRASE)
    return f"{installation.url}/console/{installation.shell(script)}"


def make_key(page: Page, name: str) -> str:
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create the key").click()
    return page.get_by_label("API key", exact=True).input_value()


def ask(installation: Installation, secret: str) -> None:
    with OpenAI(base_url=f"{installation.url}/openai/v1", api_key=secret, max_retries=0) as client:
        client.chat.completions.create(model="sandbox", messages=[{"role": "user", "content": "hello"}])


def test_a_founder_without_credit_gets_to_the_first_request(
    visitor: Page, installation: Installation
) -> None:
    page = visitor
    start = f"{found(installation, 'nell')}/start"
    sign_in(page, installation, "nell")
    notice = page.locator("#no-credit")
    expect(notice).to_contain_text("until the operator of this service grants some")
    page.get_by_role("link", name="New project").click()
    page.get_by_label("Name").fill("website")
    page.keyboard.press("Enter")
    expect(notice).to_be_visible()
    live = make_key(page, "live")
    expect(notice).to_be_visible()
    page.goto(start)
    with pytest.raises(APIStatusError, match="prepaid credit"):
        ask(installation, live)
    refused = page.locator("#refused")
    expect(refused).to_contain_text(
        "1 request with the key live: 402 insufficient quota (no credit)", timeout=30_000
    )
    notice.get_by_role("link", name="new test key").click()
    expect(page.get_by_label("Test key")).to_be_checked()
    test = make_key(page, "test")
    assert test.startswith("ck_test_")
    expect(notice).to_have_count(0)
    page.goto(start)
    expect(page.locator("#curl")).to_contain_text("YOUR_TEST_KEY")
    ask(installation, test)
    expect(page.locator("#step-request")).to_contain_text("Done", timeout=30_000)


def test_the_playground_works_without_credit(visitor: Page, installation: Installation) -> None:
    home = found(installation, "noah")
    sign_in(visitor, installation, "noah")
    visitor.goto(f"{home}/projects/new")
    visitor.get_by_label("Name").fill("website")
    visitor.keyboard.press("Enter")
    visitor.get_by_role("link", name="Playground").click()
    expect(visitor.locator("#no-credit")).to_be_visible()
    expect(visitor.get_by_label("Test key")).to_be_checked()
    visitor.get_by_role("button", name="Send").click()
    expect(visitor.locator("[data-part=amount]")).to_have_text("$0", timeout=20_000)
    visitor.complaints.clear()  # type: ignore[attr-defined]
    visitor.get_by_label("Test key").uncheck()
    visitor.get_by_role("button", name="Send").click()
    expect(visitor.locator("[data-part=failure]")).to_contain_text("prepaid credit does not cover")
    # Chromium itself notes the status 402.
    assert len(visitor.complaints) == 1  # type: ignore[attr-defined]
    visitor.complaints.clear()  # type: ignore[attr-defined]
