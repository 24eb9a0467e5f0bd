"""The pages of an installation before its first request: each that a menu names is for everybody, and none
speaks of a filter that is not set or of a time before the first request.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import OPERATOR, PASSWORD, enter, watched
from tests.browser.test_every_page import WINDOWS, judged
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("every page"), pytest.mark.timeout(300)]

LINKS = """(menu) => [...document.querySelectorAll(menu)].map((each) => new URL(each.href))
  .filter(({origin, pathname}) => origin === location.origin && !/logout|sign-out/.test(pathname))
  .map(({pathname}) => pathname)"""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start an installation that has an organization, keys and models, and no request yet."""
    with Installation(tmp_path_factory.mktemp("empty")) as empty:
        empty.start({})
        empty.shell(OPERATOR)
        yield empty
        empty.verify()


@pytest.fixture(scope="module")
def session(browser: Browser, empty: Installation) -> Any:
    """Return the cookies of the operator."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{empty.url}/admin/")
        enter(page, "operator", PASSWORD)
        expect(page).to_have_title("Overview | chatapi", timeout=20_000)
        return context.storage_state()


@pytest.fixture(params=WINDOWS)
def context(browser: Browser, session: Any, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    """Open the operator's browser, on a screen and on a phone."""
    window: Any = WINDOWS[request.param]
    permissions = ["clipboard-read", "clipboard-write"]
    with browser.new_context(storage_state=session, permissions=permissions, **window) as context:
        yield context


def of_menu(page: Page, empty: Installation, path: str, menu: str) -> dict[str, str]:
    """Return the paths of a page's menu."""
    page.goto(empty.url + path)
    return {each: each for each in page.evaluate(LINKS, menu)}


def test_pages_before_the_first_request_are_for_everybody(
    context: BrowserContext, empty: Installation
) -> None:
    page = watched(context, empty)
    paths = of_menu(page, empty, "/admin/", "#nav-sidebar a[href]")
    paths |= of_menu(page, empty, "/console/1/start", ".side a[href]")
    assert len(paths) > 40
    assert judged(page, empty, paths, "empty") == {}


def test_an_empty_page_says_what_comes_first(context: BrowserContext, empty: Installation) -> None:
    page = watched(context, empty)
    page.goto(f"{empty.url}/admin/")
    page.get_by_role("button", name="Copy the request").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".steps pre code").last.inner_text()
    assert copied.startswith(f"curl -N {empty.url}/v1/chat/completions")
    main = page.get_by_role("main")
    expect(main).to_contain_text("No earlier data")
    expect(main).not_to_contain_text("Compared with")
    expect(main).not_to_contain_text("Last 0 requests")
    page.goto(f"{empty.url}/console/1/members")
    expect(page.get_by_role("main")).to_contain_text("No members yet.")
    page.get_by_role("main").get_by_role("link", name="Invite one").click()
    expect(page.get_by_role("heading", name="Invite a member")).to_be_visible()
    page.goto(f"{empty.url}/console/1/playground")
    expect(page.get_by_text("The stream’s raw events appear here.")).to_be_visible()
    assert page.complaints == []  # type: ignore[attr-defined]
