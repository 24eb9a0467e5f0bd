"""A real browser before a real installation. Collected with `CHATAPI_BROWSER_TESTS=1` only: then Chromium
must be there.

CHATAPI_BROWSER_TESTS=1 .venv/bin/pytest tests/browser
"""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.installation import Installation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

IS_WANTED = os.environ.get("CHATAPI_BROWSER_TESTS") == "1"
collect_ignore_glob = [] if IS_WANTED else ["test_*.py"]
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
if IS_WANTED and CHROMIUM is None:
    raise pytest.UsageError(
        "CHATAPI_BROWSER_TESTS=1, but there is no Chromium: apt-get install chromium-headless-shell"
    )

PASSWORD = "operator-passphrase"
OPERATOR = f"""
from django.contrib.auth.models import User
User.objects.create_superuser("operator", password="{PASSWORD}")
"""


PASSPHRASE = "correct horse battery"
PEOPLE = f"""
from django.contrib.auth.models import User
from accounts.models import Member, Organization
for name, organization, role in (
    ("ada", "Globex", "owner"), ("vic", "Globex", "viewer"),
    ("ira", "Initech", "owner"), ("tess", "Tests", "owner"), ("tess", "Hooli", "admin"),
):
    user, is_new = User.objects.get_or_create(username=name)
    if is_new:
        user.set_password("{PASSPHRASE}")
        user.save()
    row, _ = Organization.objects.get_or_create(name=organization)
    Member.objects.create(organization=row, user=user, role=role)
    print(row.name, row.pk)
"""


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start Valkey, web and worker, with an operator that may do everything; the books must be right at the
    end.
    """
    with Installation(tmp_path_factory.mktemp("browser")) as installation:
        installation.start({})
        installation.shell(OPERATOR)
        yield installation
        installation.verify()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Start Debian's Chromium; playwright's own download is not needed."""
    from playwright.sync_api import sync_playwright  # `make test` collects this folder and has no browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def session(browser: "Browser", installation: Installation) -> Any:
    """Return the cookies of an operator after signing in with the form."""
    from playwright.sync_api import expect

    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{installation.url}/admin/")
    enter(page, "operator", PASSWORD)
    expect(page).to_have_title("Overview | chatapi")
    state = context.storage_state()
    context.close()
    return state


def watched(context: "BrowserContext", installation: Installation) -> "Page":
    """Return a page whose errors and outside requests are noted in `page.complaints`."""
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: None if _is_ours(request.url, installation) else complaints.append(request.url),
    )
    page.complaints = complaints  # type: ignore[attr-defined]
    return page


def _is_ours(url: str, installation: Installation) -> bool:
    return url.startswith((installation.url, installation.url.replace("http", "ws"), "data:", "blob:"))


@pytest.fixture
def context(browser: "Browser", session: Any) -> "Iterator[BrowserContext]":
    """Yield the operator's browser, with a clipboard."""
    context = browser.new_context(storage_state=session, permissions=["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def page(context: "BrowserContext", installation: Installation) -> "Iterator[Page]":
    """Open a page as an operator; it may log no error and ask no other server."""
    page = watched(context, installation)
    yield page
    assert page.complaints == []  # type: ignore[attr-defined]


# ---- an organization's people in the console


@pytest.fixture(scope="session")
def ids(installation: Installation) -> dict[str, int]:
    """Make the people and their organizations; return the organizations' numbers."""
    return {name: int(pk) for name, pk in (line.split() for line in installation.shell(PEOPLE).splitlines())}


def enter(page: "Page", name: str, password: str) -> None:
    """Enter name and password on the two pages that ask for them."""
    page.get_by_label("E-mail address or user name").fill(name)
    page.keyboard.press("Enter")
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def enter_provider(
    page: "Page", issuer: str, register: Callable[[str], tuple[str, str]], roles_of_groups: str
) -> None:
    """Save an identity provider on the open page of sign-in settings.

    `register` makes a client there with the page's redirect URL, and returns its id and secret.
    """
    from playwright.sync_api import expect

    callback = page.get_by_label("The redirect URL to enter at the provider").input_value()
    client_id, secret = register(callback)
    page.get_by_label("Issuer").fill(issuer)
    page.get_by_label("Client id").fill(client_id)
    page.get_by_label("Client secret").fill(secret)
    page.get_by_label("Groups claim").fill("groups")
    page.get_by_label("Roles of groups").fill(roles_of_groups)
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("The identity provider is saved.")).to_be_visible()


def sign_in(page: "Page", installation: Installation, name: str) -> None:
    """Sign in with the console's form."""
    from playwright.sync_api import expect

    page.goto(f"{installation.url}/console/")
    enter(page, name, PASSPHRASE)
    expect(page.locator("form[action$=sign-out]")).to_be_attached(timeout=20_000)


@pytest.fixture
def visitor(browser: "Browser", installation: Installation) -> "Iterator[Page]":
    """Open a page without a session, with a clipboard; it may log no error and ask no other server."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = watched(context, installation)
    yield page
    assert page.complaints == []  # type: ignore[attr-defined]
    context.close()
