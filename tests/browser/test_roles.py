"""A new organization's owner: invited by the operator, in by the link, at work on what is theirs, and blind
to the rest.
"""

import json
import re
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PASSWORD, enter
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

PASSPHRASE = "correct horse battery"
PAGES = ["/admin/", "/admin/live/", "/admin/requests/", "/admin/accounts/member/", "/admin/accounts/apikey/"]
LISTEN = (
    "(url) => new Promise((done) => { const s = new WebSocket(url);"
    " s.onmessage = (m) => done(m.data); s.onclose = () => done(null); })"
)


@pytest.fixture(scope="module")
def session(browser: Browser, installation: Installation) -> Any:
    """Return the owner's cookies: the operator creates an organization and invites her; she chooses a
    password and signs in.
    """
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{installation.url}/admin/accounts/organization/add/")
    enter(page, "operator", PASSWORD)
    page.locator("#id_name").fill("Initech")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was added successfully")).to_be_visible()
    organization_id = re.findall(r"organization/(\d+)/", page.content())[0]
    page.goto(f"{installation.url}/admin/accounts/member/add/?organization={organization_id}&role=owner")
    page.locator("#id_name").fill("imogen")
    page.get_by_role("button", name="Save", exact=True).click()
    link = page.locator("#link").input_value()
    context.close()
    return _accepted(browser, link)


def _accepted(browser: Browser, link: str) -> Any:
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.locator("#id_new_password1").fill(PASSPHRASE)
    page.locator("#id_new_password2").fill(PASSPHRASE)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible()
    state = context.storage_state()
    context.close()
    return state


def test_an_owner_sets_her_organization_up_and_sees_only_that(page: Page, installation: Installation) -> None:
    url = installation.url
    with OpenAI(base_url=f"{url}/openai/v1", api_key=installation.keys["live"], max_retries=0) as others:
        theirs = others.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": "hello"}]
        )
    page.goto(f"{url}/admin/")
    expect(page.get_by_text("No requests yet")).to_be_visible()
    page.goto(f"{url}/admin/accounts/project/add/")
    page.locator("#id_name").fill("payroll")
    page.locator("#select2-id_organization-container").click()
    page.get_by_role("option", name="Initech").click()
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto(f"{url}/admin/accounts/apikey/add/")
    page.locator("#select2-id_project-container").click()
    expect(page.locator(".select2-results__option")).to_have_text(["Initech / default", "Initech / payroll"])
    page.get_by_role("option", name="Initech / payroll").click()
    page.locator("#id_name").fill("backend")
    page.get_by_role("button", name="Save", exact=True).click()
    secret = re.findall(r"ck_live_\w{51}", page.content())[0]
    with OpenAI(base_url=f"{url}/openai/v1", api_key=secret, max_retries=0) as client:
        own = client.chat.completions.create(model="sandbox", messages=[{"role": "user", "content": "hello"}])
    page.goto(f"{url}/admin/requests/")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator(f"[title='{own.id}'] >> nth=0").click()
    expect(page.get_by_text("Where the time went")).to_be_visible()
    assert "Tests" not in "".join(page.goto(url + path).text() for path in PAGES)  # type: ignore[union-attr]
    page.close()
    assert theirs.id != own.id


def test_what_others_run_is_not_in_her_feed(
    browser: Browser, installation: Installation, session: Any
) -> None:
    context = browser.new_context(storage_state=session)
    page = context.new_page()
    page.goto(f"{installation.url}/admin/live/")
    asked: dict[str, Any] = {
        "model": "sandbox",
        "messages": [{"role": "user", "content": "hello [sandbox tokens=100 delay_ms=50]"}],
    }
    with (
        OpenAI(
            base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0
        ) as others,
        others.chat.completions.create(**asked, stream=True) as stream,
    ):
        next(iter(stream))
        shown = page.evaluate(LISTEN, installation.url.replace("http", "ws") + "/admin/live/feed")
        assert json.loads(shown)["rows"] == []
        assert (
            page.request.get(
                f"{installation.url}/admin/requests/{stream.response.headers['x-generation-id']}"
            ).status
            == 404
        )
    context.close()


def test_her_pages_fit_a_phone(browser: Browser, installation: Installation, session: Any) -> None:
    context = browser.new_context(storage_state=session, viewport={"width": 390, "height": 844})
    page = context.new_page()
    for path in [*PAGES, "/admin/accounts/member/add/"]:
        page.goto(installation.url + path)
        widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1], path
    context.close()
