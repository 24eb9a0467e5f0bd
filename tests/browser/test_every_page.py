"""Every page of the URL configuration, on a screen and on a phone, in the one in light colours and in the
other in the dark: axe-core finds nothing serious, the keyboard is enough, nothing is too wide, no page logs
an error or asks another host.

With CHATAPI_SCREENSHOTS, a folder, the screen is also dark and the phone also light, and the folder has a
picture of each page in these four windows at the end.
With CHATAPI_SEEDED_REQUESTS, a number, the pages are full: this many requests of twenty more organizations.
With PAGES_SEED (CI: the commit), an eighth of the visits is made, and of these a half with the keyboard,
chosen by this number. It also chooses on which of the two a page is dark.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4
from zlib import crc32

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests import fake_stripe, page_paths
from tests.browser.conftest import PASSPHRASE, enter, watched
from tests.browser.visiting import (
    PHONE,
    SCREEN,
    SHOTS,
    complaints,
    complaints_about_content,
    keyboard_complaints,
    shot,
    visit,
)
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("every page"), pytest.mark.timeout(400)]

OWNER = "operator-and-owner"
FURNISH = f"""
import json
from tests.browser.furnishing import furnish
print(json.dumps(furnish({OWNER!r}, {PASSPHRASE!r})))
"""
SECOND_FACTORS = f"""
from tests.browser import furnishing
furnishing.{{}}_second_factors({OWNER!r})
"""
SEEDED = os.environ.get("CHATAPI_SEEDED_REQUESTS")
JOIN_SEEDED = f"""
from django.contrib.auth.models import User
from accounts.models import Member, Organization
organization = Organization.objects.filter(name__startswith="Seed ").order_by("pk")[0]
Member.objects.create(organization=organization, user=User.objects.get(username={OWNER!r}), role="owner")
print(organization.pk)
"""
# Sign-up needs mail, which is never sent here.
OPEN = {
    "CHATAPI_SIGN_UP": "open",
    "CHATAPI_EMAIL_URL": "smtp://127.0.0.1:9",
    "CHATAPI_EMAIL_FROM": "chatapi@example.com",
}
WINDOWS = {
    "screen": {"viewport": SCREEN, "color_scheme": "light"},
    "phone": {"viewport": PHONE, "color_scheme": "dark"},
}
if SHOTS:
    WINDOWS |= {
        "dark screen": {"viewport": SCREEN, "color_scheme": "dark"},
        "light phone": {"viewport": PHONE, "color_scheme": "light"},
    }
Paths = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start an installation that takes payments. Its rows are made by hand, so its books are not verified."""
    folder = tmp_path_factory.mktemp("every-page")
    with (
        fake_stripe.serving() as stripe,
        Installation(folder, **OPEN, **stripe.environment) as installation,
    ):
        installation.start({})
        yield installation


@pytest.fixture(scope="module")
def paths(installation: Installation) -> Paths:
    """Return the paths of all pages."""
    found: Paths = json.loads(installation.shell(FURNISH).splitlines()[-1])
    if SEEDED:
        command = [sys.executable, "manage.py", "seedusage", "--add", "--generations", SEEDED]
        installation.run("seedusage", command)
        assert installation.processes["seedusage"].wait() == 0
        home = f"/console/{installation.shell(JOIN_SEEDED)}/"
        # The console's pages of a whole organization; the others are of rows that the seeded one has not.
        found["console"] |= {
            f"full {name}": re.sub(r"/console/\d+/", home, path)
            for name, path in found["console"].items()
            if re.fullmatch(r"/console/\d+/[a-z-]+(\?(?!key=).+)?", path)
        }
    return found


@pytest.fixture(scope="module")
def session(browser: Browser, installation: Installation, paths: Paths) -> Any:
    """Return the cookies of an operator who owns an organization."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{installation.url}/console/")
        enter(page, OWNER, PASSPHRASE)
        expect(page.locator("form[action$=sign-out]")).to_be_attached(timeout=20_000)
        return context.storage_state()


@pytest.fixture(scope="module", params=WINDOWS)
def window(request: pytest.FixtureRequest) -> Any:
    """Return the size and the colours of the browser's windows."""
    return WINDOWS[request.param]


@pytest.fixture(scope="module")
def context(browser: Browser, session: Any, window: Any) -> Iterator[BrowserContext]:
    """Open the owner's browser, on a screen and on a phone."""
    with browser.new_context(storage_state=session, **window) as context:
        yield context


@pytest.fixture
def second_factors(installation: Installation) -> Iterator[None]:
    """Give the owner second factors, until the end of a test."""
    installation.shell(SECOND_FACTORS.format("add"))
    yield
    installation.shell(SECOND_FACTORS.format("remove"))


def is_drawn(page: Page, name: str) -> bool:
    """Return whether the page of this name is visited in a window of this size."""
    seed = os.environ.get("PAGES_SEED")
    return seed is None or crc32(f"{seed} {page.viewport_size} {name}".encode()) % 8 == 0


def is_drawn_for_keyboard(page: Page, name: str) -> bool:
    """Return whether the keyboard is tried on the page of this name in a window of this size."""
    seed = os.environ.get("PAGES_SEED")
    return seed is None or crc32(f"keyboard {seed} {page.viewport_size} {name}".encode()) % 2 == 0


def choose_colors(page: Page, name: str) -> None:
    """Prefer the dark for the page of this name on the screen, and light on the phone, or the other way
    round.
    """
    is_dark_on_screen = crc32(f"colors {os.environ.get('PAGES_SEED')} {name}".encode()) % 2 == 0
    is_dark = is_dark_on_screen == (page.viewport_size == SCREEN)
    page.emulate_media(color_scheme="dark" if is_dark else "light")


def judged(
    page: Page, installation: Installation, paths: dict[str, str], state: str = ""
) -> dict[str, list[str]]:
    """Open all pages, and return what is wrong with each; two routes may lead to one page."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for name, path in paths.items():
        if path == page_paths.PART or not is_drawn(page, name):
            continue
        page.complaints.clear()  # type: ignore[attr-defined]
        if not SHOTS:  # the windows have both colours then
            choose_colors(page, name)
        response = visit(page, installation.url + path)
        # All refusals look the same.
        address = page.url if response is None or response.ok else f"{response.status}"
        if response is None or address in seen:
            continue
        seen.add(address)
        wrong = complaints(page)
        shot(page, f"{state} {path}")
        if response.ok and is_drawn_for_keyboard(page, name):
            wrong += keyboard_complaints(page)
        wrong += [each for each in page.complaints if response.ok or str(response.status) not in each]  # type: ignore[attr-defined]
        if not (response.ok or response.status in (403, 404)):
            wrong.append(f"status {response.status}")
        found |= {f"{name} {path}": wrong} if wrong else {}
    return found


@pytest.mark.parametrize("area", ["admin", "console", "documentation"])
def test_every_page_is_for_everybody(
    context: BrowserContext, installation: Installation, paths: Paths, area: str
) -> None:
    page = watched(context, installation)
    found = judged(page, installation, paths[area])
    assert not found, json.dumps(found, indent=1)


def test_every_page_of_the_reference_is_for_everybody(browser: Browser, installation: Installation) -> None:
    with browser.new_context(**dict[str, Any](WINDOWS["phone"])) as context:
        page = watched(context, installation)
        visit(page, f"{installation.url}/docs/reference")
        paths = list(page_paths.of_reference())
        found = {path: complaints_about_content(page, path) for path in paths if is_drawn(page, path)}
    assert not {path: wrong for path, wrong in found.items() if wrong}
    assert len(paths) > 300
    assert page.complaints == []  # type: ignore[attr-defined]


def test_pages_before_one_is_in_are_for_everybody(
    browser: Browser, installation: Installation, paths: Paths, window: Any
) -> None:
    open_to_all = {
        name: path
        for name, path in (paths["admin"] | paths["console"]).items()
        if name == "login" or re.match(r"/console/(?!\d)", path)
    }
    with browser.new_context(**window) as context:
        found = judged(watched(context, installation), installation, {"front": "/"} | open_to_all, "open")
    assert not found, json.dumps(found, indent=1)


@pytest.mark.usefixtures("second_factors")
def test_pages_of_second_factors_are_for_everybody(
    context: BrowserContext, installation: Installation, paths: Paths
) -> None:
    of_account = {
        name: path for name, path in paths["console"].items() if path.startswith("/console/account")
    }
    found = judged(watched(context, installation), installation, of_account, "second factors")
    assert not found, json.dumps(found, indent=1)


@pytest.mark.parametrize(
    ("form", "typed", "shown"),
    [
        ("new_key", {"Name": "shown once"}, "#secret"),
        ("new_webhook", {"URL": "https://shown.example.com"}, "#secret"),
        ("chatapi_webhookendpoint_add", {"URL": "https://shown.example.com"}, "#secret"),
        ("invite", {"E-mail address": "shown-{number}@example.com"}, "#link"),
        ("new_webhook", {"URL": "http://wrong.example.com"}, ".error"),
    ],
)
def test_what_a_form_leads_to_is_for_everybody(
    context: BrowserContext,
    installation: Installation,
    paths: Paths,
    form: str,
    typed: dict[str, str],
    shown: str,
) -> None:
    page = watched(context, installation)
    page.goto(installation.url + (paths["admin"] | paths["console"])[form])
    for label, text in typed.items():
        page.get_by_label(label).first.fill(text.format(number=uuid4().hex[:8]))
    page.keyboard.press("Enter")
    expect(page.locator(shown).first).to_be_visible()
    shot(page, f"{form} {shown}")
    # The browser logs the status of a form that was refused.
    logged = [each for each in page.complaints if "status of 400" not in each]  # type: ignore[attr-defined]
    assert complaints(page) + logged == []
    if is_drawn_for_keyboard(page, f"{form} {shown}"):
        assert keyboard_complaints(page) == []


def test_an_open_list_of_choices_is_for_everybody(
    context: BrowserContext, installation: Installation
) -> None:
    page = watched(context, installation)
    page.goto(f"{installation.url}/admin/accounts/apikey/add/")
    page.get_by_role("combobox", name="Project").click()
    expect(page.get_by_role("searchbox", name="Project")).to_be_focused()
    expect(page.get_by_role("option", name="Tests / default")).to_be_visible()
    assert complaints(page) == []


def _open_search(page: Page) -> Locator:
    page.keyboard.press("Control+k")
    expect(page.locator("#search-input-command")).to_be_focused()
    page.keyboard.type("project")
    return page.locator("#command-results li").first


def _open_filters(page: Page) -> Locator:
    page.get_by_role("button", name="Filters").click()
    return page.locator("#changelist-filter").get_by_role("link").first


def _open_account_menu(page: Page) -> Locator:
    if page.viewport_size == PHONE:
        page.get_by_role("button", name="Menu").click()
    page.locator(".user-menu > button").click()
    return page.get_by_role("navigation", name="Your account")


@pytest.mark.parametrize("open_it", [_open_search, _open_filters, _open_account_menu])
def test_what_a_list_of_the_admin_opens_is_for_everybody(
    context: BrowserContext, installation: Installation, open_it: Callable[[Page], Locator]
) -> None:
    page = watched(context, installation)
    page.goto(f"{installation.url}/admin/accounts/apikey/")
    expect(open_it(page)).to_be_visible()
    shot(page, open_it.__name__)
    assert complaints(page) + page.complaints == []  # type: ignore[attr-defined]


def test_unknown_pages_are_for_everybody(context: BrowserContext, installation: Installation) -> None:
    page = context.new_page()
    for path in ("/console/no-such-page", "/admin/no-such-page", "/docs/no-such-page"):
        page.goto(installation.url + path)
        shot(page, path)
        assert complaints(page) == [], path
