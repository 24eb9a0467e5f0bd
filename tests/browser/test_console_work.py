"""Limits and running requests in the console: few clicks, by keyboard, and what happens to the clients."""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from openai import APIError, OpenAI
from playwright.sync_api import Page, expect

from tests.browser.conftest import sign_in
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]

LONG = "hello [sandbox tokens=400 delay_ms=100]"
NEW_KEY = """
import json
from accounts.keys import create_key
from accounts.models import Project
project = Project.objects.get(organization__name="Tests", name="default")
print(json.dumps(create_key(project, name="to stop")[1]))
"""


@contextmanager
def streaming(
    installation: Installation, count: int, key: str, end_users: Sequence[str] = ()
) -> Iterator[list[Any]]:
    """Send requests that run for long, each for its end user if there are any; yield their futures, whose
    results are their whole answers.
    """
    url = f"{installation.url}/openai/v1"
    with OpenAI(base_url=url, api_key=key, max_retries=0) as client, ThreadPoolExecutor(count) as pool:

        def ask(**parameters: Any) -> list[Any]:
            asked: Any = [{"role": "user", "content": LONG}]
            return list(
                client.chat.completions.create(model="sandbox", messages=asked, stream=True, **parameters)
            )

        people = [{"user": name} for name in end_users] or [{}] * count
        yield [pool.submit(ask, **person) for person in people]


def test_a_project_gets_fifty_dollars_a_month_in_four_clicks(
    visitor: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/overview")
    page.get_by_role("link", name="Budgets and limits").click()
    page.get_by_role("link", name="New budget").click()
    page.get_by_label("Limit in USD").fill("50")
    page.get_by_role("button", name="Set the budget").click()
    expect(page.get_by_text("The budget is set.")).to_be_visible()
    row = page.get_by_role("row", name="default")
    expect(row.first).to_contain_text("$50.00")
    row.first.get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="By key")).to_be_visible()
    page.get_by_role("button", name="Remove the limit").click()
    page.get_by_role("button", name="Really remove the limit?").click()
    expect(page.get_by_text("The limit of default is removed.")).to_be_visible()


def test_a_running_request_is_stopped_by_keyboard_and_then_all_of_its_key(
    visitor: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/live")
    expect(page.locator("#live-state")).to_have_text("live")
    # Of a key without other requests, of which some may have failed.
    with streaming(installation, 3, json.loads(installation.shell(NEW_KEY))) as streams:
        rows = page.locator("#live-rows tr")
        expect(rows).to_have_count(3, timeout=15_000)
        expect(page.locator("#live-tokens")).not_to_have_text("0", timeout=15_000)
        expect(page.locator("#live-cost")).to_contain_text("$0.")
        button = rows.first.get_by_role("button")
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_have_text("Really stop?")
        page.keyboard.press("Enter")
        expect(rows).to_have_count(2, timeout=15_000)
        expect(rows.first.get_by_role("button")).to_be_focused()
        rows.first.locator("[data-key-link]").click()
        expect(rows).to_have_count(2)
        page.get_by_role("button", name="Stop all of this key").click()
        page.get_by_role("button", name="Really stop all of this key?").click()
        expect(page.get_by_text("Asked to stop 2 requests.")).to_be_visible()
        expect(page.get_by_text("No running request matches.")).to_be_visible(timeout=15_000)
        for stream in streams:
            with pytest.raises(APIError, match="stopped this request"):
                stream.result(timeout=30)
    page.goto(f"{installation.url}/console/{ids['Tests']}/usage?days=1&key=to+stop")
    trend = page.get_by_role("region", name="Error rate")
    expect(trend).to_contain_text(re.compile(r"(?<![\d.])0 %"))


def test_a_runaway_end_user_is_found_and_stopped(
    visitor: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/live")
    expect(page.locator("#live-state")).to_have_text("live")
    with streaming(installation, 2, installation.keys["live"], ["$&/eve", "mallory"]) as streams:
        rows = page.locator("#live-rows tr")
        expect(rows).to_have_count(2, timeout=15_000)
        rows.get_by_role("link", name="$&/eve").click()
        expect(page.locator("#live-state")).to_have_text("live")
        expect(rows).to_have_count(1)
        expect(page.get_by_label("End user")).to_have_value("$&/eve")
        page.get_by_role("button", name="Stop all of this end user").click()
        page.get_by_role("button", name="Really stop all of this end user?").click()
        expect(page.get_by_text("Asked to stop 1 request.")).to_be_visible()
        with pytest.raises(APIError, match="stopped this request"):
            streams[0].result(timeout=30)
        page.get_by_role("link", name="Show all").click()
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("end user mallory")
        rows.get_by_role("button").click()
        rows.get_by_role("button", name="Really stop?").click()
        with pytest.raises(APIError, match="stopped this request"):
            streams[1].result(timeout=30)


def test_a_stop_after_the_session_has_ended_says_that_nothing_was_stopped(
    visitor: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/live")
    with streaming(installation, 1, installation.keys["live"]) as streams:
        button = page.locator("#live-rows tr").first.get_by_role("button")
        button.click(timeout=15_000)
        page.context.clear_cookies(name="sessionid")
        button.click()
        expect(button).to_have_text("Not stopped")
        sign_in(page, installation, "tess")
        page.goto(f"{installation.url}/console/{ids['Tests']}/live")
        page.locator("#live-rows tr").first.get_by_role("button").click(timeout=15_000)
        page.get_by_role("button", name="Really stop?").click()
        with pytest.raises(APIError, match="stopped this request"):
            streams[0].result(timeout=30)


def test_start_leads_to_the_sign_in_after_the_session_has_ended(
    visitor: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Hooli']}/start")
    page.context.clear_cookies(name="sessionid")
    expect(page).to_have_url(re.compile("/console/sign-in"), timeout=15_000)


def test_a_view_is_copied_as_a_link(visitor: Page, installation: Installation, ids: dict[str, int]) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    view = f"{installation.url}/console/{ids['Tests']}/requests?sort=cost&days=7"
    page.goto(view)
    page.get_by_role("button", name="Copy the link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == view


def test_a_webhook_is_added_tried_rotated_and_removed(
    visitor: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Hooli']}/overview")
    page.get_by_role("link", name="Webhooks").click()
    page.get_by_role("link", name="Add one").click()
    page.get_by_label("URL").fill("https://example.com/hooks")
    page.get_by_label("Budget reached").check()
    page.get_by_role("button", name="Add the webhook").click()
    secret = page.get_by_label("Secret", exact=True).input_value()
    assert secret.startswith("whsec_")
    page.get_by_role("link", name="I have copied it").click()
    page.get_by_role("button", name="Send a test event").click()
    expect(page.get_by_text("A test event is on its way.")).to_be_visible()
    expect(page.get_by_role("row", name="This is a test.")).to_contain_text("waiting")
    page.get_by_role("button", name="Rotate the secret").click()
    page.get_by_role("button", name="Really make a new secret?").click()
    assert page.get_by_label("Secret", exact=True).input_value() not in ("", secret)
    page.get_by_role("link", name="I have copied it").click()
    page.get_by_role("button", name="Disable").click()
    expect(page.get_by_text("The endpoint is disabled.")).to_be_visible()
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Really remove it, with its log?").click()
    expect(page.get_by_text("No webhooks yet.")).to_be_visible()


def test_a_member_chooses_the_mail_and_reads_what_the_kinds_mean(
    visitor: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page = visitor
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Hooli']}/notifications")
    expect(page.get_by_text("Nothing has happened yet.")).to_be_visible()
    expect(page.get_by_text("This service sends no mail")).to_be_visible()
    page.get_by_role("checkbox", name="Low credit").uncheck()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Your choice is saved.")).to_be_visible()
    expect(page.get_by_role("checkbox", name="Low credit")).not_to_be_checked()
    expect(page.get_by_role("checkbox", name="Budget reached")).to_be_checked()
