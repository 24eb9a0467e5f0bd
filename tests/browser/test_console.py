"""An organization's people in the console: from the first sign-in to the first request, and at daily work."""

import re
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PASSWORD, enter, sign_in
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]

SLOW = "hello [sandbox tokens=60 delay_ms=100]"
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def page(visitor: Page) -> Page:
    """Return a page without a session."""
    return visitor


def client_of(installation: Installation, secret: str) -> OpenAI:
    return OpenAI(base_url=f"{installation.url}/openai/v1", api_key=secret, max_retries=0)


def test_a_new_organization_gets_to_its_first_request(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    sign_in(page, installation, "ada")
    expect(page).to_have_url(f"{installation.url}/console/{ids['Globex']}/start")
    expect(page.locator("#step-project")).not_to_contain_text("Done")
    page.get_by_role("link", name="New project").click()
    page.get_by_label("Name").fill("website")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="New API key")).to_be_visible()
    page.get_by_label("Name").fill("backend")
    page.get_by_label("Requests per minute").fill("100")
    page.get_by_label("Budget in USD").fill("5")
    page.get_by_role("button", name="Create the key").click()
    page.get_by_role("button", name="Copy", exact=True).first.click()
    secret = page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(r"ck_live_\w{51}", secret)
    page.get_by_role("link", name="I have copied it").click()
    expect(page.get_by_text("100 requests per minute")).to_be_visible()
    expect(page.get_by_text("$5.00")).to_be_visible()
    assert secret not in page.content()
    page.goto(f"{installation.url}/console/{ids['Globex']}/start")
    for step in ("project", "key"):
        expect(page.locator(f"#step-{step}")).to_contain_text("Done")
    with (
        client_of(installation, secret) as client,
        client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": SLOW}], stream=True
        ) as stream,
    ):
        next(iter(stream))
        expect(page.locator("#streaming")).to_contain_text("is streaming", timeout=10_000)
        for _ in stream:
            pass
    expect(page.locator("#step-request")).to_contain_text("Done", timeout=15_000)
    expect(page.locator("#step-budget")).to_contain_text("Done")
    page.goto(f"{installation.url}/console/{ids['Globex']}/budgets/new")
    page.get_by_label("Limit in USD").fill("50")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The budget is set.")).to_be_visible()
    expect(page.get_by_role("row", name="website").first).to_contain_text("$50.00")
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".card").nth(1)).to_contain_text("1")


def test_members_are_invited_and_come_in_by_their_link(
    page: Page, browser: Browser, installation: Installation, ids: dict[str, int]
) -> None:
    sign_in(page, installation, "ada")
    page.get_by_role("link", name="Members").click()
    page.get_by_role("link", name="Invite").click()
    page.get_by_label("User name").fill("bert")
    page.get_by_label("member: read").check()
    page.get_by_role("button", name="Invite").click()
    link = page.get_by_label("Link").input_value()
    page.get_by_role("link", name="All members").click()
    row = page.get_by_role("row", name="bert")
    expect(row).to_contain_text("invited")
    row.get_by_role("combobox").select_option("viewer")
    row.get_by_role("button", name="Save").click()
    expect(page.get_by_text("bert now has the role viewer.")).to_be_visible()
    other = browser.new_page()
    other.goto(link)
    expect(other.get_by_text("ada invited you to Globex as viewer")).to_be_visible()
    expect(other.get_by_text("bert", exact=True)).to_be_visible()
    other.close()
    row.get_by_role("button", name="Remove").click()
    expect(page.locator("[data-announces]")).to_have_text("Really remove?")
    row.get_by_role("button", name="Really remove?").click()
    expect(page.get_by_text("bert is no longer a member of Globex.")).to_be_visible()
    page.get_by_role("link", name="Audit log").click()
    expect(page.get_by_role("row", name=re.compile("ada.*deleted")).first).to_be_visible()


def test_an_invitation_ticks_itself_off(page: Page, installation: Installation, ids: dict[str, int]) -> None:
    sign_in(page, installation, "ira")
    step = page.locator("#step-invitation")
    expect(step).to_be_visible()
    expect(step).not_to_contain_text("Done")
    step.get_by_role("link").click()
    page.get_by_label("User name").fill("ivo")
    page.get_by_role("button", name="Invite").click()
    expect(page.get_by_label("Link")).to_be_visible()
    page.goto(f"{installation.url}/console/{ids['Initech']}/start")
    expect(step).to_contain_text("Done")


@pytest.fixture(scope="module")
def used(installation: Installation) -> str:
    """Make requests of Tests, of which one fails; return the id of one that does not."""
    with client_of(installation, installation.keys["live"]) as client:
        answers = [
            client.chat.completions.create(model="sandbox", messages=[{"role": "user", "content": "hello"}])
            for _ in range(3)
        ]
    installation.receipt(answers[-1].id)
    return answers[-1].id


def test_the_keyboard_reaches_everything(
    page: Page, installation: Installation, ids: dict[str, int], used: str
) -> None:
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.locator(".switcher:not(.account) summary").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Hooli")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Hooli")).to_be_hidden()
    expect(page.locator(".switcher:not(.account) summary")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Hooli").press("Enter")
    expect(page).to_have_title("Start · Hooli · chatapi")
    page.goto(f"{installation.url}/console/{ids['Tests']}/models/sandbox")
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Responses")).to_be_focused()
    expect(page.locator("#responses")).to_contain_text("client.responses.create")


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, PHONE])
def test_the_guides_and_signing_out_are_at_the_top(
    page: Page, installation: Installation, ids: dict[str, int], size: Any
) -> None:
    page.set_viewport_size(size)
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/overview")
    for place in (".brand", ".switcher:not(.account) summary", ".away a", ".account summary"):
        expect(page.locator(".top").locator(place)).to_be_in_viewport(ratio=1)
    page.get_by_role("link", name="Docs").click()
    expect(page.get_by_role("heading", name="Documentation", exact=True)).to_be_visible()
    page.go_back()
    page.locator(".account summary").click()
    expect(page.locator(".account .menu")).to_be_in_viewport(ratio=1)
    page.locator(".switcher:not(.account) summary").click()
    expect(page.locator(".account .menu")).to_be_hidden()
    page.locator(".account summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_an_id_is_in_one_line_and_a_filters_button_in_line_with_its_fields(
    page: Page, installation: Installation, ids: dict[str, int], used: str
) -> None:
    sign_in(page, installation, "tess")
    for width in (1280, 1024):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{installation.url}/console/{ids['Tests']}/requests")
        line = page.locator("table code").first.bounding_box()
        field, button = (
            page.locator(f"[role=search] > .fields {each}").first for each in ("input", "button")
        )
        assert line is not None
        assert line["height"] < 30
        assert field.evaluate("e => e.getBoundingClientRect().height") == button.evaluate(
            "e => e.getBoundingClientRect().height"
        )


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, PHONE])
def test_the_search_for_everything_is_one_key_away_on_each_page(
    page: Page, installation: Installation, ids: dict[str, int], size: Any
) -> None:
    page.set_viewport_size(size)
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/keys")
    field = page.get_by_role("searchbox", name="Search everything")
    page.keyboard.press("/")
    expect(field).not_to_be_focused()
    page.keyboard.press("Control+k")
    expect(field).to_be_focused()
    page.keyboard.type("budgets/")
    expect(field).to_have_value("budgets/")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    expect(field).to_have_value("budgets")
    page.get_by_role("main").get_by_role("link", name="Budgets and limits").click()
    expect(page).to_have_url(f"{installation.url}/console/{ids['Tests']}/budgets")


@pytest.mark.parametrize(("platform", "is_kept"), [("MacIntel", True), ("Linux x86_64", False)])
def test_a_field_keeps_the_keys_that_the_system_has_for_its_text(
    page: Page, installation: Installation, ids: dict[str, int], platform: str, is_kept: bool
) -> None:
    page.add_init_script(f"Object.defineProperty(navigator, 'platform', {{ get: () => '{platform}' }})")
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/keys")
    own, everything = (page.get_by_role("searchbox", name=name) for name in ("Name or key", "Search everyth"))
    own.focus()
    page.keyboard.press("Control+k")
    expect(own if is_kept else everything).to_be_focused()
    for keys in ("Meta+k", "Meta+K"):
        own.focus()
        page.keyboard.press(keys)
        expect(everything).to_be_focused()
    own.focus()
    page.keyboard.press("Control+Shift+k")
    expect(own).to_be_focused()


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, PHONE])
def test_a_column_of_requests_leads_to_its_requests_by_pointer_and_by_keyboard(
    page: Page, installation: Installation, ids: dict[str, int], used: str, size: Any
) -> None:
    page.set_viewport_size(size)
    sign_in(page, installation, "tess")
    requests = f"{installation.url}/console/{ids['Tests']}/requests?days=7"
    page.goto(requests)
    page.locator("svg.plot a.column").last.click()
    expect(page.get_by_role("link", name="finished:")).to_be_visible()
    expect(page.locator(f"a[title$='{used}']")).to_be_visible()
    page.goto(requests)
    page.get_by_text("These numbers as a table").focus()
    page.keyboard.press("Enter")
    page.get_by_role("region", name="The chart's numbers").get_by_role("link").last.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="finished:")).to_be_visible()
    expect(page.locator(f"a[title$='{used}']")).to_be_visible()


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, PHONE])
def test_no_button_is_over_an_example(page: Page, installation: Installation, size: Any) -> None:
    page.set_viewport_size(size)
    page.goto(f"{installation.url}/docs/quickstart")
    for example in page.locator(".example").all():
        text, button = (example.locator(each).bounding_box() for each in ("pre", "button"))
        assert text is not None
        assert button is not None
        assert text["x"] + text["width"] <= button["x"]


def make_key(page: Page, console_url: str, name: str) -> None:
    """Create a key, and go on to its page."""
    page.goto(f"{console_url}/keys/new")
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create the key").click()
    page.get_by_role("link", name="I have copied it").click()


def test_a_key_is_rotated_and_disabled(
    page: Page, installation: Installation, ids: dict[str, int], used: str
) -> None:
    sign_in(page, installation, "tess")
    make_key(page, f"{installation.url}/console/{ids['Tests']}", "to rotate")
    page.get_by_role("link", name="Rotate").click()
    page.get_by_role("button", name="Make a new secret").click()
    expect(page.get_by_role("heading", name="API key rotated")).to_be_visible()
    page.get_by_role("link", name="I have copied it").click()
    page.get_by_role("button", name="End it now").click()
    page.get_by_role("button", name="Really end it? Requests with it fail.").click()
    expect(page.get_by_text("Only the new secret works now.")).to_be_visible()
    page.get_by_role("button", name="Disable").click()
    page.get_by_role("button", name="Really disable? Requests with it fail.").click()
    expect(page.locator("main .badge", has_text="disabled")).to_be_visible()
    page.get_by_role("button", name="Enable").click()
    expect(page.locator("main .badge", has_text="active")).to_be_visible()


def test_a_viewer_reads_and_changes_nothing(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    sign_in(page, installation, "vic")
    for name in ("Playground", "Audit log"):
        expect(page.get_by_role("link", name=name)).to_have_count(0)
    page.get_by_role("link", name="API keys").click()
    expect(page.get_by_role("link", name="New API key")).to_have_count(0)


def test_a_key_is_revoked_after_a_second_press(
    page: Page, installation: Installation, ids: dict[str, int], used: str
) -> None:
    sign_in(page, installation, "tess")
    make_key(page, f"{installation.url}/console/{ids['Tests']}", "short-lived")
    page.get_by_role("button", name="Revoke").focus()
    for _ in range(2):  # a key that is held presses once
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    expect(page.get_by_role("button", name="Really revoke?")).to_be_focused()
    page.keyboard.press("Shift+Tab")  # who goes on to something else is asked again
    expect(page.locator("[data-announces]")).to_have_text("")
    page.get_by_role("button", name="Disable").click()
    expect(page.get_by_role("button", name="Really disable?")).to_be_focused()
    # It does not move away under the pointer, and a double click presses once.
    page.get_by_role("button", name="Revoke", exact=True).dblclick()
    page.get_by_role("button", name="Really revoke?").click()
    expect(page.get_by_text("The key short-lived is revoked.")).to_be_visible()
    expect(page.get_by_role("button", name="Revoke")).to_have_count(0)
    page.get_by_role("link", name="Back to API keys").click()
    expect(page.get_by_role("row", name="short-lived")).to_contain_text("revoked")


def test_the_operator_enters_any_organization(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page.goto(f"{installation.url}/console/{ids['Globex']}/keys")
    enter(page, "operator", PASSWORD)
    expect(page.get_by_role("heading", name="API keys")).to_be_visible()
