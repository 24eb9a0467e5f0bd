"""The dialogs of the admin, which ask before a key is disabled or revoked: for axe-core, by keyboard, in both
colours, and as pages where no script opens them.
"""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import watched
from tests.browser.visiting import complaints
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

MAKE = """
from accounts.keys import create_key, get_or_create_project
project = get_or_create_project("Tests", "default")
print(*(create_key(project, name=f"asked about {number}")[0].pk for number in range(10)))
"""
COLOUR = "(button) => getComputedStyle(button).color"


@pytest.fixture(scope="module")
def key_ids(installation: Installation) -> list[str]:
    """Return the ids of keys, one for each test."""
    return installation.shell(MAKE).split()


@pytest.fixture
def key_url(installation: Installation, key_ids: list[str]) -> str:
    """Return the URL of an active key's pages."""
    return f"{installation.url}/admin/accounts/apikey/{key_ids.pop()}"


def open_dialog(page: Page, button: str) -> None:
    """Press that button of the key's page by keyboard."""
    page.get_by_role("link", name=button, exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("button", ["Disable", "Revoke"])
def test_an_open_dialog_is_for_everybody(
    browser: Browser, session: Any, installation: Installation, key_url: str, button: str, scheme: Any
) -> None:
    with browser.new_context(storage_state=session, color_scheme=scheme) as context:
        page = watched(context, installation)
        page.goto(f"{key_url}/change/")
        open_dialog(page, button)
        dialog = page.get_by_role("dialog", name=f"{button} this key?", exact=True)
        expect(dialog).to_have_accessible_description(re.compile("Requests with this key fail"))
        assert complaints(page) + page.complaints == []  # type: ignore[attr-defined]
        page.set_viewport_size({"width": 390, "height": 844})
        assert complaints(page) == []


def test_a_dialog_is_used_by_keyboard_only(page: Page, key_url: str) -> None:
    page.goto(f"{key_url}/change/")
    title = page.title()
    opener = page.get_by_role("link", name="Disable", exact=True)
    dialog = page.get_by_role("dialog")
    controls = [
        dialog.get_by_role("button", name="Close", exact=True),
        dialog.get_by_role("button", name="Disable", exact=True),
        dialog.get_by_role("link", name="Back to the key", exact=True),
    ]
    open_dialog(page, "Disable")
    assert page.title() == title
    for control in controls:
        expect(control).to_be_focused()
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#page') === null"), "the focus stays in the dialog"
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()
    for closes in (controls[0], controls[2]):
        open_dialog(page, "Disable")
        closes.press("Enter")
        expect(dialog).to_be_hidden()
        expect(opener).to_be_focused()
    open_dialog(page, "Disable")
    page.mouse.click(5, 5)
    expect(dialog).to_be_hidden()
    open_dialog(page, "Disable")
    controls[1].press("Enter")
    expect(page.get_by_text("The key is disabled.")).to_be_visible()
    open_dialog(page, "Enable")
    dialog.get_by_role("button", name="Enable", exact=True).press("Enter")
    expect(page.get_by_text("The key is enabled.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_only_what_cannot_be_undone_is_red(browser: Browser, session: Any, key_url: str, scheme: Any) -> None:
    with browser.new_context(storage_state=session, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(f"{key_url}/change/")
        red = "rgb(185, 28, 28)" if scheme == "light" else "rgb(248, 113, 113)"
        for button, is_red in (("Disable", False), ("Revoke", True)):
            open_dialog(page, button)
            asked = page.get_by_role("dialog").get_by_role("button", name=button, exact=True)
            assert (asked.evaluate(COLOUR) == red) is is_red
            page.keyboard.press("Escape")


def test_a_question_works_without_a_script(browser: Browser, session: Any, key_url: str) -> None:
    with browser.new_context(storage_state=session, java_script_enabled=False) as context:
        page = context.new_page()
        for button, shown in (("Disable", "The key is disabled."), ("Enable", "The key is enabled.")):
            page.goto(f"{key_url}/{button.lower()}/")
            page.get_by_role("link", name="Back to the key").click(timeout=5_000)
            assert page.url == f"{key_url}/change/"
            page.goto(f"{key_url}/{button.lower()}/")
            page.get_by_role("button", name=button, exact=True).click()
            # The theme's own forms are shown by its script.
            expect(page.get_by_text(shown)).to_be_attached()


def test_a_dialog_after_the_session_has_ended_leads_to_the_sign_in(
    browser: Browser, session: Any, key_url: str
) -> None:
    with browser.new_context(storage_state=session) as context:
        page = context.new_page()
        page.goto(f"{key_url}/change/")
        context.clear_cookies()
        page.get_by_role("link", name="Revoke", exact=True).click()
        expect(page.get_by_label("E-mail address or user name")).to_be_visible()


def test_no_icon_is_read_aloud(page: Page, key_url: str, installation: Installation) -> None:
    shown = "[...document.querySelectorAll('.material-symbols-outlined:not([aria-hidden=true])')]"
    for url in (f"{key_url}/change/", f"{key_url}/revoke/", f"{installation.url}/admin/accounts/apikey/"):
        page.goto(url)
        assert page.locator(".material-symbols-outlined").count() > 0
        assert page.evaluate(f"{shown}.map((each) => each.outerHTML)") == []
    expect(page.get_by_role("link", name="chatapi", exact=True)).to_have_count(2)
    expect(page.get_by_role("button", name="Search", exact=True)).to_have_count(1)
    page.goto(f"{key_url}/change/")
    open_dialog(page, "Revoke")
    assert page.evaluate(f"{shown}.map((each) => each.outerHTML)") == []
