"""An owner invites a contractor to one project by keyboard; the contractor sees this project only."""

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.browser.conftest import PASSPHRASE, sign_in, watched
from tests.browser.visiting import complaints, keyboard_complaints
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]

PHONE: ViewportSize = {"width": 390, "height": 844}
SCREEN: ViewportSize = {"width": 1280, "height": 800}
SLOW = "hello [sandbox tokens=60 delay_ms=100]"
PAGES = ("start", "overview", "usage", "requests", "live", "keys", "budgets", "models")
HOUSE = f"""
from django.contrib.auth.models import User
from accounts.keys import create_key, get_or_create_project
from accounts.models import Member, Organization
user = User.objects.create_user("olga", password="{PASSPHRASE}")
organization = Organization.objects.create(name="Limits")
Member.objects.create(organization=organization, user=user, role="owner")
for name in ("alpha", "beta"):
    create_key(get_or_create_project("Limits", name), name=f"key of {{name}}")
print(organization.pk)
"""


@pytest.fixture(scope="module")
def console(installation: Installation) -> str:
    """Make the organization with two projects; return the URL of its console."""
    return f"{installation.url}/console/{installation.shell(HOUSE).strip()}"


def invite(page: Page) -> str:
    """Invite a viewer to the project alpha on the open form, by keyboard; return the link."""
    assert complaints(page) == []
    alpha = page.get_by_label("alpha")
    expect(alpha).to_be_hidden()
    page.get_by_label("User name").fill("carl")
    for key in ("Tab", "Tab", "ArrowDown"):  # the roles, then the choice of projects
        page.keyboard.press(key)
    expect(page.get_by_label("Only these")).to_be_checked()
    expect(alpha).to_be_visible()
    for key in ("Tab", "Space", "Tab", "Tab", "Tab"):  # alpha, beta, a link, the button
        page.keyboard.press(key)
    expect(alpha).to_be_checked()
    assert complaints(page) == []
    page.keyboard.press("Enter")
    expect(page.get_by_text("carl is invited to the project alpha of Limits as viewer.")).to_be_visible()
    return page.get_by_label("Link").input_value()


def test_a_contractor_is_invited_to_one_project(
    visitor: Page, browser: Browser, installation: Installation, console: str
) -> None:
    sign_in(visitor, installation, "olga")
    visitor.goto(f"{console}/members/invite")
    link = invite(visitor)
    visitor.goto(f"{console}/members")
    row = visitor.get_by_role("row", name="carl")
    expect(row).to_contain_text("alpha")
    visitor.set_viewport_size(PHONE)
    assert complaints(visitor) == []
    row.get_by_role("link", name="change the projects of carl").click()
    assert complaints(visitor) + keyboard_complaints(visitor) == []
    context = browser.new_context()
    page = watched(context, installation)
    page.goto(link)
    expect(page.get_by_text("olga invited you to the project alpha of Limits as viewer.")).to_be_visible()
    for label in ("New password", "New password confirmation"):
        page.get_by_label(label, exact=True).fill("a long horse battery")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Start")).to_be_visible()
    for name in PAGES:
        page.set_viewport_size(SCREEN)
        page.emulate_media(color_scheme="light")
        page.goto(f"{console}/{name}")
        assert "beta" not in page.content(), name
        assert complaints(page) == [], name
        page.set_viewport_size(PHONE)
        page.emulate_media(color_scheme="dark")
        assert complaints(page) == [], name
    page.set_viewport_size(SCREEN)
    expect(page.get_by_role("navigation", name="Console").get_by_role("link")).to_have_count(len(PAGES))
    switcher = page.locator("details.switcher").first
    switcher.locator("summary").click()
    expect(switcher.get_by_role("link")).to_have_text(["alpha"])
    assert keyboard_complaints(page) == []
    page.goto(f"{installation.url}/admin/")
    expect(page.get_by_text("The admin is for people who see a whole organization.")).to_be_visible()
    assert page.complaints == []  # type: ignore[attr-defined]
    context.close()


def test_a_limit_takes_a_live_page_away(
    visitor: Page, browser: Browser, installation: Installation, console: str
) -> None:
    """The page of a colleague who becomes limited reloads, and has one project; so does that of a project
    which a group gives and no longer gives.
    """
    installation.shell(
        "from django.contrib.auth.models import User\n"
        "from accounts.models import Member, Organization\n"
        f"user = User.objects.create_user('mia', password='{PASSPHRASE}')\n"
        "limits = Organization.objects.get(name='Limits')\n"
        "Member.objects.create(organization=limits, user=user, role='member')"
    )
    sign_in(visitor, installation, "olga")
    context = browser.new_context()
    page = watched(context, installation)
    sign_in(page, installation, "mia")
    page.goto(f"{console}/live")
    expect(page.locator(".switcher summary").first).to_contain_text("all projects")
    visitor.goto(f"{console}/members")
    visitor.get_by_role("link", name="change the projects of mia").click()
    visitor.get_by_label("Only these").check()
    visitor.get_by_label("beta").check()
    visitor.get_by_role("button", name="Save").click()
    expect(visitor.get_by_text("mia now has the role member in the project beta of Limits.")).to_be_visible()
    expect(page.locator(".switcher summary").first).to_contain_text("beta", timeout=15_000)

    visitor.goto(f"{console}/members")
    visitor.get_by_role("link", name="Groups").click()
    visitor.get_by_role("link", name="Make one").click()
    visitor.get_by_label("Name").fill("Team")
    visitor.get_by_label("mia (member)").check()
    visitor.get_by_label("alpha").check()
    assert complaints(visitor) + keyboard_complaints(visitor) == []
    visitor.set_viewport_size(PHONE)
    assert complaints(visitor) == []
    visitor.get_by_role("button", name="Make the group").click()
    expect(visitor.get_by_role("row", name="Team")).to_contain_text("alpha")
    assert complaints(visitor) == []
    page.reload()
    page.locator(".switcher summary").first.click()
    page.get_by_role("link", name="alpha").click()
    expect(page.locator(".switcher summary").first).to_contain_text("alpha")
    for label in ("Remove Team", "Really remove?"):
        visitor.get_by_role("button", name=label).click()
    expect(visitor.get_by_text("Its people stay members.")).to_be_visible()
    expect(page.get_by_text("There is no page at this URL.")).to_be_visible(timeout=15_000)
    context.close()


def test_start_follows_the_requests_of_its_own_project(
    visitor: Page, browser: Browser, installation: Installation, console: str
) -> None:
    """Two pages of a member of two projects, while a request of the first one runs."""
    made = installation.shell(
        "from django.contrib.auth.models import User\n"
        "from accounts.keys import create_key\n"
        "from accounts.models import Member, Organization, Project\n"
        f"user = User.objects.create_user('nora', password='{PASSPHRASE}')\n"
        "limits = Organization.objects.get(name='Limits')\n"
        "place = Member.objects.create(organization=limits, user=user, role='member', is_limited=True)\n"
        "gamma, delta = [Project.objects.create(organization=limits, name=n) for n in ('gamma', 'delta')]\n"
        "place.projects.set([gamma, delta])\n"
        "print(gamma.pk, delta.pk, create_key(gamma, name='of gamma')[1])"
    )
    gamma, delta, secret = made.split()
    sign_in(visitor, installation, "nora")
    other = visitor.context.new_page()
    for page, project in ((visitor, delta), (other, gamma)):
        with page.expect_websocket():
            page.goto(f"{console}/start?project={project}")
    with (
        OpenAI(base_url=f"{installation.url}/openai/v1", api_key=secret, max_retries=0) as client,
        client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": SLOW}], stream=True
        ) as stream,
    ):
        next(iter(stream))
        expect(other.locator("#streaming")).to_contain_text("is streaming", timeout=10_000)
        expect(visitor.locator("#streaming")).to_contain_text("Waiting for the first request.")
        for _ in stream:
            pass
    expect(other.locator("#step-request")).to_contain_text("Done", timeout=15_000)
    expect(visitor.locator("#step-request")).not_to_contain_text("Done")
