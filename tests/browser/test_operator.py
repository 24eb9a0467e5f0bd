"""An operator at work: signs in, makes a key, sees a request run, finds it again, stops another one."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import APIError, OpenAI
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PASSWORD, enter, watched
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

PAGES = ["/admin/", "/admin/live/", "/admin/requests/"]
LONG = "hello [sandbox tokens=400 delay_ms=50]"
ROW_PX = 29
"""The height of a row of the admin's menu and of the gap below it."""


@pytest.fixture(scope="module")
def client(installation: Installation) -> Iterator[OpenAI]:
    """Return OpenAI's client with an existing key."""
    with OpenAI(
        base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0
    ) as client:
        yield client


def ask(client: OpenAI, content: str) -> Any:
    """Begin a stream."""
    return client.chat.completions.create(
        model="sandbox",
        messages=[{"role": "user", "content": content}],
        stream=True,
        stream_options={"include_usage": True},
    )


def dollars(prompt_tokens: int, completion_tokens: int) -> str:
    """Return the cost at $1 and $2 per million tokens."""
    return f"{(prompt_tokens * 1_000 + completion_tokens * 2_000) / 10**9:.9f}".rstrip("0")


# ---- the story


def test_from_a_new_key_to_a_request_in_live_requests_and_overview(
    page: Page, installation: Installation
) -> None:
    page.goto(f"{installation.url}/admin/accounts/apikey/add/")
    page.locator(
        ".field-project .select2-selection, [name=project] + .select2 .select2-selection"
    ).first.click()
    page.locator(".select2-search__field").fill("default")
    page.locator(".select2-results__option", has_text="Tests / default").click()
    page.get_by_role("textbox", name="Name").fill("from-the-browser")
    page.get_by_role("button", name="Save", exact=True).click()
    secret = page.get_by_label("API key", exact=True).input_value()

    page.goto(f"{installation.url}/admin/live/")
    expect(page.get_by_role("status")).to_have_text("live")
    with (
        OpenAI(base_url=f"{installation.url}/openai/v1", api_key=secret, max_retries=0) as client,
        ask(client, "hi [sandbox tokens=60 delay_ms=50]") as stream,
    ):
        first = next(iter(stream))
        row = page.locator(f"[data-id={first.id}]")
        expect(row).to_contain_text("from-the-browser")
        expect(row.locator("[data-is=state]")).to_have_text("running")
        usage = [chunk.usage for chunk in stream if chunk.usage][-1]
    expect(row).to_have_count(0)

    cost = dollars(usage.prompt_tokens, usage.completion_tokens)
    page.goto(f"{installation.url}/admin/requests/?id={first.id}")
    expect(page).to_have_url(f"{installation.url}/admin/requests/{first.id}")
    expect(page.locator(".sum")).to_have_text(f"${cost}")
    page.get_by_role("link", name="from-the-browser").click()
    expect(page).to_have_url(re.compile(r"/admin/requests/\?key=\d+$"))
    for at, shown in enumerate([str(usage.prompt_tokens), str(usage.completion_tokens)]):
        expect(page.locator("tbody td.num").nth(at)).to_have_text(shown)
    expect(page.locator("tbody td.num [title]").nth(1)).to_have_attribute("title", f"${cost}")

    key = page.url.partition("key=")[2]
    page.goto(f"{installation.url}/admin/?days=1&key={key}")
    expect(page.locator(".card", has_text="Spend").locator(".value")).to_have_attribute("title", f"${cost}")
    expect(page.locator(".card", has_text="Tokens").locator(".value")).to_have_attribute(
        "title", f"{usage.total_tokens:,}"
    )


def test_the_stop_button_asks_back_and_the_client_gets_an_error(
    page: Page, installation: Installation, client: OpenAI
) -> None:
    page.goto(f"{installation.url}/admin/live/")
    with ask(client, LONG) as stream:
        chunks = iter(stream)
        first = next(chunks)
        button = page.locator(f"[data-id={first.id}] button")
        expect(button).to_have_css("color", "rgb(185, 28, 28)")  # as of all that can't be undone
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_have_text("Really stop?")
        page.keyboard.press("Enter")
        with pytest.raises(APIError, match="stopped this request"):
            list(chunks)
    expect(page.locator(f"[data-id={first.id}]")).to_have_count(0)
    receipt = installation.receipt(first.id)
    assert receipt["error"]["code"] == "stopped_by_operator"
    assert 0 < receipt["usage"]["completion_tokens"] < 400


def test_the_focus_goes_on_to_the_next_request_after_each_stop(
    page: Page, installation: Installation, client: OpenAI
) -> None:
    page.goto(f"{installation.url}/admin/live/")
    rows = page.locator("#live-rows tr")
    with ExitStack() as stack:
        streams = [iter(stack.enter_context(ask(client, LONG))) for _ in range(3)]
        for stream in streams:
            next(stream)
        expect(rows).to_have_count(3)
        rows.nth(1).get_by_role("button").focus()
        for left in (2, 1, 0):
            # The last one has no next one, so the one before it gets the focus.
            page.keyboard.press("Enter")
            expect(page.locator("button:focus")).to_have_text("Really stop?")
            page.keyboard.press("Enter")
            expect(rows).to_have_count(left)
            if left:
                expect(rows.last.get_by_role("button")).to_be_focused()
        expect(page.locator("#main")).to_be_focused()
        for stream in streams:
            with pytest.raises(APIError, match="stopped this request"):
                list(stream)


def test_live_connects_again_after_the_web_process_was_away(
    browser: Browser, installation: Installation, session: Any
) -> None:
    context = browser.new_context(storage_state=session)
    page = context.new_page()
    page.goto(f"{installation.url}/admin/live/")
    state = page.get_by_role("status")
    expect(state).to_have_text("live")
    installation.end("web")
    expect(state).to_contain_text("trying again")
    installation.start_web()
    expect(state).to_have_text("live", timeout=15_000)
    context.close()


def test_live_ends_for_a_person_that_has_signed_out_elsewhere(
    browser: Browser, installation: Installation
) -> None:
    context = browser.new_context()
    page, other = context.new_page(), context.new_page()
    page.goto(f"{installation.url}/admin/live/")
    enter(page, "operator", PASSWORD)
    expect(page.get_by_role("status")).to_have_text("live", timeout=15_000)  # a password takes its time
    other.goto(f"{installation.url}/admin/live/")
    other.evaluate("document.querySelector('form[action$=\"/logout/\"]').submit()")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=3_000)
    context.close()


# ---- without a script, without a mouse, without much room


def test_live_works_without_javascript(
    browser: Browser, installation: Installation, session: Any, client: OpenAI
) -> None:
    context = browser.new_context(storage_state=session, java_script_enabled=False)
    page = context.new_page()
    with ask(client, LONG) as stream:
        first = next(iter(stream))
        page.goto(f"{installation.url}/admin/live/")
        assert page.locator("meta[http-equiv=refresh]").get_attribute("content") == "3"
        page.locator(f"[data-id={first.id}] button").click()
        expect(page.get_by_text(f"Asked to stop {first.id}.")).to_be_visible()
    for path in PAGES:
        page.goto(installation.url + path)
        expect(page.locator(".operator")).to_be_visible()
    context.close()


def test_the_overview_is_used_by_keyboard_alone(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/")
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(({ tagName, textContent, name }) => `${tagName} ${name || textContent.trim().slice(0, 20)}`)"
            "(document.activeElement)"
        )
        seen.append(focused)
        if focused == "A 30 days":
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            page.keyboard.press("Enter")
            break
    expect(page.locator(".choices [aria-current]").first).to_have_text("30 days")
    assert outline == "solid", seen


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(
    browser: Browser, installation: Installation, session: Any, client: OpenAI, theme: Any
) -> None:
    with ask(client, "hello") as stream:
        (*_, last) = stream
    context = browser.new_context(
        storage_state=session, viewport={"width": 390, "height": 844}, color_scheme=theme
    )
    page = watched(context, installation)
    for path in [*PAGES, f"/admin/requests/{last.id}", "/admin/?start=2026-11-01&end=2026-11-02"]:
        page.goto(installation.url + path)
        expect(page.locator(".operator")).to_be_visible()
        widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1], path
    assert page.complaints == []  # type: ignore[attr-defined]
    context.close()


# ---- the right to listen


def test_the_feed_is_for_staff_of_this_origin_only(
    browser: Browser, installation: Installation, session: Any
) -> None:
    listen = (
        "(url) => new Promise((done) => { const s = new WebSocket(url);"
        " s.onmessage = (m) => done(m.data); s.onclose = () => done(null); })"
    )
    feed = installation.url.replace("http", "ws") + "/admin/live/feed"
    stranger, operator = browser.new_context(), browser.new_context(storage_state=session)
    for context, path in ((stranger, "/"), (operator, "/admin/")):
        page = context.new_page()
        page.goto(installation.url + path)
        shown = page.evaluate(listen, feed)
        assert (shown is None) == (context is stranger)
    assert json.loads(shown).keys() == {"now_ms", "rows", "gone"}
    elsewhere = operator.new_page()
    elsewhere.route(
        "**/*",
        lambda route: route.fulfill(content_type="text/html", body="<!doctype html><title>Elsewhere</title>"),
    )
    elsewhere.goto("http://elsewhere.test/")
    assert elsewhere.evaluate(listen, feed) is None
    stranger.close()
    operator.close()


def test_the_side_menu_stays_as_it_was_left(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/")
    switch, menu = page.get_by_role("button", name="Menu"), page.locator("#nav-sidebar")
    for is_open in (False, True):
        switch.focus()
        page.keyboard.press("Enter")
        expect(menu).to_be_visible(visible=is_open)
        expect(switch).to_have_attribute("aria-expanded", str(is_open).lower())
        page.reload()
        expect(menu).to_be_visible(visible=is_open)


def test_the_menu_of_a_phone_is_opened_and_closed_by_buttons(page: Page, installation: Installation) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/admin/")
    menu = page.locator("#nav-sidebar")
    expect(menu).to_be_hidden()
    page.get_by_role("button", name="Menu").focus()
    page.keyboard.press("Enter")
    expect(menu).to_be_visible()
    menu.get_by_role("button", name="Close").focus()
    page.keyboard.press("Enter")
    expect(menu).to_be_hidden()


@pytest.mark.parametrize("path", ["", "accounts/organization/", "usage/price/", "auth/user/"])
def test_all_groups_of_the_menu_are_in_view(page: Page, installation: Installation, path: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{installation.url}/admin/{path}")
    menu = page.locator("#nav-sidebar-apps")
    headings = menu.get_by_role("heading")
    expect(headings).to_have_text(["Usage", "Organization", "Catalog", "Administration"])
    for heading in headings.all():
        expect(heading).to_be_in_viewport(ratio=1)
    # Not below the account's button, which is over the menu's end, also with Payments, which are off here.
    end = page.locator(".user-menu").bounding_box()
    last = headings.last.bounding_box()
    assert end
    assert last
    assert last["y"] + last["height"] + ROW_PX <= end["y"]
    if path:
        current = menu.locator("a[aria-current]")
        expect(current).to_have_count(1)
        expect(current).to_be_in_viewport(ratio=1)


def test_groups_of_the_menu_are_opened_by_keyboard_and_stay_so(
    page: Page, installation: Installation
) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{installation.url}/admin/")
    menu = page.locator("#nav-sidebar-apps")
    names = ("Users", "Prices", "Discounts", "Audit log")
    users, prices, *others = (menu.get_by_role("link", name=name, exact=True) for name in names)
    expect(users).to_be_hidden()
    for link in (prices, *others):
        expect(link).to_be_in_viewport(ratio=1)
    # A screen reader says of it whether it is open, as of each `details`.
    summary = menu.locator("summary", has_text="Administration")
    summary.focus()
    page.keyboard.press("Enter")
    expect(users).to_be_in_viewport(ratio=1)
    menu.locator("summary", has_text="Catalog").focus()
    page.keyboard.press("Space")
    expect(prices).to_be_hidden()
    page.reload()
    expect(users).to_be_visible()
    expect(prices).to_be_hidden()
    page.goto(f"{installation.url}/admin/usage/price/")
    expect(prices).to_be_visible()


def test_the_search_of_pages_is_used_by_keyboard_alone(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/")
    field = page.locator("#search-input-command")
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type("projects")
    expect(page.locator("#command-results li").first).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/admin/accounts/project/")


def test_a_list_has_filters_and_actions_and_asks_back(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/accounts/apikey/")
    filters = page.locator("#changelist-filter")
    opener = page.get_by_role("button", name="Filters")
    opener.focus()
    page.keyboard.press("Enter")
    expect(filters).to_be_visible()
    expect(filters.get_by_role("link").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(filters).to_be_hidden()
    expect(opener).to_be_focused()
    run = page.get_by_role("button", name="Run")
    page.get_by_role("checkbox").nth(1).check()
    expect(run).to_be_hidden()
    page.locator("select[name=action]").select_option("disable_selected")
    expect(run).to_be_visible()
    # Other tests may have made more keys than a page shows.
    page.goto(f"{installation.url}/admin/accounts/apikey/?q=live")
    page.locator("#result_list a", has_text="live").first.click()
    page.get_by_role("link", name="Disable").click()
    expect(page.get_by_role("heading", name="Disable this key?")).to_be_visible()
    page.get_by_role("link", name="Back to the key").click()
    expect(page.get_by_role("heading", name="Disable this key?")).to_be_hidden()


def test_a_fields_menu_is_used_by_keyboard_alone(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/accounts/member/add/")
    opener = page.get_by_role("button", name="More actions").first
    menu = page.locator(f"#{opener.get_attribute('aria-controls')}")
    opener.focus()
    page.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(menu.get_by_role("link", name="Add another")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(opener).to_be_focused()


def test_a_new_row_of_a_form_is_removed_by_keyboard(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/chatapi/servedmodel/add/")
    rows = page.locator(".formset > .form-group:not(.empty-form)")
    expect(rows).to_have_count(1)
    rows.get_by_role("button", name="Remove").focus()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(0)


def test_the_account_menu_is_used_by_keyboard_alone(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/")
    opener, menu = page.locator(".user-menu > button"), page.get_by_role("navigation", name="Your account")
    opener.focus()
    page.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(menu.get_by_role("button", name="Light")).to_be_visible()
    for name in ("Light", "Dark"):
        page.keyboard.press("Tab")
        expect(menu.get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_class(re.compile("dark"))
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(opener).to_be_focused()
