"""An operator and keys: makes one by keyboard, pastes its first requests, rotates it, and takes it away
again.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AuthenticationError, OpenAI
from playwright.sync_api import APIResponse, Browser, BrowserContext, Page, Route, expect

from tests.browser.visiting import shot
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
made = [create_key(get_or_create_project("Tests", "default"), name=f"spare-{number}") for number in range(8)]
print(json.dumps([(row.pk, secret) for row, secret in made]))
"""
MODELS = [f"claude-sonnet-4-5-202509{day}" for day in range(10, 22)]
MAKE_MODELS = f"""
from chatapi.models import ServedModel
ServedModel.objects.bulk_create(ServedModel(id=name) for name in {MODELS})
"""
REMOVE_MODELS = f"""
from chatapi.models import ServedModel
ServedModel.objects.filter(pk__in={MODELS}).delete()
"""
SEEN = """(box) => [...box.querySelectorAll("label")].filter((label) => {
  const {top, bottom} = label.getBoundingClientRect(), edges = box.getBoundingClientRect();
  return top >= edges.top && bottom <= edges.bottom;
}).map((label) => label.innerText.trim())"""
"""The choices of a box that are seen without scrolling in it."""
CLONES = "[...box.children].slice(0, 12).map((each) => each.cloneNode(true))"
CLIPBOARD = "navigator.clipboard.readText()"


@pytest.fixture(scope="module")
def spare(installation: Installation) -> list[tuple[int, str]]:
    """Return the ids and secrets of keys, one for each test."""
    spare: list[tuple[int, str]] = json.loads(installation.shell(MAKE))
    return spare


@pytest.fixture
def made(installation: Installation, spare: list[tuple[int, str]]) -> tuple[str, str]:
    """Return an existing key and the URL of its page."""
    key_id, secret = spare.pop()
    return secret, f"{installation.url}/admin/accounts/apikey/{key_id}"


def is_let_in(installation: Installation, secret: str) -> bool:
    with OpenAI(base_url=f"{installation.url}/openai/v1", api_key=secret, max_retries=0) as client:
        try:
            client.models.list()
        except AuthenticationError:
            return False
        return True


def copied(page: Page, button: str) -> str:
    """Press that button by keyboard and return the content of the clipboard."""
    page.get_by_role("button", name=button, exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("Copied")
    page.clock.run_for(60_000)
    expect(page.get_by_role("status")).to_have_text("Copied")  # it waits for its reader
    page.keyboard.press("Tab")
    expect(page.get_by_role("status")).to_have_text("")  # said again for the next one
    text: str = page.evaluate(CLIPBOARD)
    return text


def test_a_key_is_made_by_keyboard_and_its_first_requests_work_as_pasted(
    page: Page, installation: Installation
) -> None:
    page.clock.install()
    page.goto(f"{installation.url}/admin/accounts/apikey/add/")
    page.locator(".select2-selection").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.type("default")
    expect(page.locator(".select2-results__option", has_text="Tests / default")).to_be_visible()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Name").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("by-keyboard")
    page.get_by_role("checkbox", name=re.compile("^completions")).focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Save", exact=True).focus()
    page.keyboard.press("Enter")
    secret = copied(page, "Copy")
    assert page.get_by_label("API key", exact=True).input_value() == secret
    pasted = subprocess.run(
        ["bash", "-c", copied(page, "Copy Chat with curl")], capture_output=True, timeout=30, check=True
    )
    assert json.loads(pasted.stdout)["choices"][0]["message"]["content"]
    pasted = subprocess.run(
        [sys.executable, "-c", copied(page, "Copy Chat with Python")],
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert pasted.stdout
    assert secret in copied(page, "Copy Chat with Node.js")


@pytest.fixture
def dozen(installation: Installation) -> Iterator[list[str]]:
    """Yield twelve models, beside those that are there, until the end of a test."""
    installation.shell(MAKE_MODELS)
    yield MODELS
    installation.shell(REMOVE_MODELS)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_dozen_models_are_seen_without_scrolling_and_more_scroll_with_a_sign(
    page: Page, installation: Installation, dozen: list[str], width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{installation.url}/admin/accounts/apikey/add/")
    box = page.locator("#id_allowed_models")
    seen = box.evaluate(SEEN)
    shot(page, "a dozen models")
    assert len(seen) >= 12
    if width == 1280:
        assert {*dozen} <= {*seen}
        assert box.evaluate("(box) => box.scrollHeight <= box.clientHeight")
    box.evaluate(f"(box) => {{ for (let i = 0; i < 5; i++) box.append(...{CLONES}); }}")
    shot(page, "many models")
    assert box.evaluate("(box) => box.scrollHeight > box.clientHeight")
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert "local" in box.evaluate("(box) => getComputedStyle(box).backgroundAttachment"), "no shadow"


def test_a_key_is_rotated_and_its_old_secret_ended(
    page: Page, installation: Installation, made: tuple[str, str]
) -> None:
    old, address = made
    page.goto(f"{address}/change/")
    page.get_by_role("link", name="Rotate").click()
    page.get_by_label("The old secret stops working").select_option("in 1 hour")
    page.get_by_role("button", name="Make a new secret").click()
    new = page.get_by_label("API key", exact=True).input_value()
    assert is_let_in(installation, new)
    assert is_let_in(installation, old)
    page.get_by_role("link", name="I have copied it").click()
    page.get_by_role("link", name="End old secret").click()
    page.get_by_role("button", name="End it").click()
    expect(page.get_by_text("Only the new secret works now.")).to_be_visible()
    wait_for(lambda: not is_let_in(installation, old), "the old secret to end", timeout_s=3)
    assert is_let_in(installation, new)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_second_press_does_not_drop_the_secret_of_the_first(
    page: Page, installation: Installation, made: tuple[str, str], *, is_new: bool
) -> None:
    answers: list[tuple[Route, APIResponse]] = []

    def answer_late(route: Route) -> None:
        if route.request.method == "POST":
            answers.append((route, route.fetch(max_redirects=0)))
        else:
            route.fallback()

    if is_new:
        page.goto(f"{installation.url}/admin/accounts/apikey/add/")
        page.locator(".select2-selection").first.click()
        page.keyboard.type("default")
        page.locator(".select2-results__option", has_text="Tests / default").click()
        page.get_by_role("textbox", name="Name").fill("pressed twice")
    else:
        page.goto(f"{made[1]}/rotate/")
    page.route("**/admin/accounts/apikey/**", answer_late)
    button = page.get_by_role("button", name="Save" if is_new else "Make a new secret", exact=True)
    button.scroll_into_view_if_needed()
    box = button.bounding_box()
    assert box is not None
    for _ in range(2):
        page.mouse.click(box["x"] + 5, box["y"] + 5)  # It does not wait for the page that follows.
        page.wait_for_timeout(300)
    ((route, answer),) = answers
    route.fulfill(response=answer)
    assert is_let_in(installation, page.get_by_label("API key", exact=True).input_value())


def test_a_key_is_disabled_enabled_and_revoked(
    page: Page, installation: Installation, made: tuple[str, str]
) -> None:
    secret, address = made
    page.goto(f"{address}/change/")
    for button, shown, works in [
        ("Disable", "The key is disabled.", False),
        ("Enable", "The key is enabled.", True),
        ("Revoke", "The key is revoked.", False),
    ]:
        page.get_by_role("link", name=button, exact=True).click()
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_text(shown)).to_be_visible()
        wait_for(
            lambda works=works: is_let_in(installation, secret) == works,  # type: ignore[misc]
            shown,
            timeout_s=3,
        )
    expect(page.get_by_role("link", name="Rotate")).to_have_count(0)


def test_without_a_clipboard_the_text_is_selected_and_copied_all_the_same(
    context: BrowserContext, made: tuple[str, str]
) -> None:
    page = context.new_page()
    page.add_init_script(NO_CLIPBOARD)
    page.goto(f"{made[1]}/rotate/")
    page.get_by_role("button", name="Make a new secret").click()
    page.get_by_role("button", name="Copy Chat with curl").click()
    expect(page.get_by_role("status")).to_have_text("Copied")
    assert page.evaluate("getSelection().toString().trim()") == page.locator("#curl").inner_text().strip()


def test_without_a_script_the_key_is_in_a_field_to_select(
    browser: Browser, session: Any, made: tuple[str, str]
) -> None:
    context = browser.new_context(storage_state=session, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{made[1]}/rotate/")
    page.get_by_role("button", name="Make a new secret").click()
    expect(page.get_by_label("API key", exact=True)).to_have_value(re.compile("^ck_live_"))
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    for path in ("chat/completions", "embeddings"):
        expect(page.get_by_text(re.compile(rf"curl http://.*/v1/{path}"))).to_be_visible()
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pages_fit_a_phone(browser: Browser, session: Any, made: tuple[str, str], theme: Any) -> None:
    context = browser.new_context(
        storage_state=session, viewport={"width": 390, "height": 844}, color_scheme=theme
    )
    page = context.new_page()
    for path in ("/change/", "/../add/", "/../", "/rotate/"):
        page.goto(made[1] + path)
        assert page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        ), path
    page.get_by_role("button", name="Make a new secret").click()
    expect(page.get_by_label("API key", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    context.close()
