"""axe-core looks at every page of the operator, light and dark, and finds nothing serious."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from openai import OpenAI
from playwright.sync_api import Browser, Page, expect

from chatapi.docs import guides
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

PAGES = [
    "", "?group=error", "?group=metadata", "live/", "live/?key=1", "requests/", "requests/?sort=cost",
    "requests/{id}", "audit/", "organizations/1", "budgets/", "budgets/{budget}", "prices/?model=sandbox",
    "catalog/import", "credit/grant", "credit/refund", "mail/", "usage/event/",
    *(f"accounts/{model}/" for model in ("organization", "project", "member", "apikey", "ratelimit")),
    *(f"accounts/{model}/add/" for model in ("organization", "project", "member", "apikey", "ratelimit")),
    "usage/ledgerentry/", "usage/hourlyusage/", "usage/budget/", "usage/budgetlimit/", "usage/credit/",
    "usage/price/", "usage/discount/",
    *(f"usage/{model}/add/" for model in ("budgetlimit", "price", "discount")),
    "accounts/organization/1/change/", "accounts/apikey/1/change/", "accounts/apikey/1/history/",
    "chatapi/servedmodel/", "chatapi/servedmodel/add/", "chatapi/servedmodel/sandbox/change/",
    "chatapi/deployment/", "chatapi/deployment/add/",
    "deployments/1/test", "auth/user/", "auth/user/1/change/",
]  # fmt: skip
LIMIT = """
from usage.models import BudgetLimit
owner = {"scope": "project", "scope_id": 1, "period": "month"}
print(BudgetLimit.objects.get_or_create({"limit_nanodollars": 10**9}, **owner)[0].pk)
"""
SERIOUS = ("serious", "critical")
# What is outside of landmarks is slow to find, and of moderate impact.
EVERYTHING = {"resultTypes": ["violations"], "rules": {"region": {"enabled": False}}}
COLOURS = {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]}
# As the theme does it; nothing may still be on its way from one colour to the other.
DARKEN = (
    "document.documentElement.classList.add('dark'); "
    "document.getAnimations().forEach((each) => each.finish());"
)


@pytest.fixture(scope="module")
def generation_id(installation: Installation) -> str:
    """Make a request, so that no list is empty."""
    with OpenAI(
        base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0
    ) as client:
        answer = client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": "hello"}]
        )
    installation.receipt(answer.id)
    return answer.id


@pytest.fixture(scope="module")
def budget_id(installation: Installation) -> str:
    """Set a limit, so that there is a budget beside it; return its id."""
    made = installation.manage("shell", "--no-imports", "-c", LIMIT)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_axe_finds_nothing_serious(
    page: Page, installation: Installation, generation_id: str, budget_id: str
) -> None:
    paths = [path.format(id=generation_id, budget=budget_id) for path in PAGES]
    found = {path: _look(page, f"{installation.url}/admin/{path}") for path in paths}
    assert {path: complaints for path, complaints in found.items() if complaints} == {}


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_serious_in_the_documentation(
    page: Page, installation: Installation, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    reference = ("/reference", "/reference/createChatCompletion", "/reference/schemas/Usage")
    paths = ("", *(f"/{slug}" for slug in guides.menu()), *reference)
    found = {path: _look(page, f"{installation.url}/docs{path}") for path in paths}
    assert {path: complaints for path, complaints in found.items() if complaints} == {}


def test_axe_finds_nothing_serious_on_a_phone(
    page: Page, installation: Installation, generation_id: str, budget_id: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    rest = (
        "usage/ledgerentry/",
        "chatapi/deployment/",
        "chatapi/servedmodel/sandbox/change/",
        "organizations/1",
        "budgets/",
        f"budgets/{budget_id}",
    )
    paths = ("", "?group=error", "live/", "requests/", f"requests/{generation_id}", *rest)
    found = {path: _look(page, f"{installation.url}/admin/{path}") for path in paths}
    assert {path: complaints for path, complaints in found.items() if complaints} == {}


def test_the_first_tab_leads_to_the_content(page: Page, installation: Installation) -> None:
    for path in ("", "accounts/apikey/", "organizations/1"):
        page.goto(f"{installation.url}/admin/{path}")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()


def test_axe_finds_nothing_serious_before_one_is_in(browser: Browser, installation: Installation) -> None:
    page = browser.new_page()
    assert [_look(page, installation.url + path) for path in ("/", "/admin/login/")] == [[], []]
    page.close()


def test_axe_finds_nothing_serious_in_an_open_list_of_choices(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/accounts/apikey/add/")
    page.get_by_role("combobox", name="Project").click()
    expect(page.get_by_role("searchbox", name="Project")).to_be_focused()
    expect(page.get_by_role("option", name="Tests / default")).to_be_visible()
    assert _complaints(page) == []


def _look(page: Page, url: str) -> list[str]:
    """Load each page once: dark mode only changes its colours."""
    page.emulate_media(color_scheme="light")
    response = page.goto(url)
    assert response is not None
    assert response.status == 200, url
    return _complaints(page)


def _complaints(page: Page) -> list[str]:
    page.evaluate(Axe().axe_script)
    complaints = _serious(page, EVERYTHING)
    page.emulate_media(color_scheme="dark")
    page.evaluate(DARKEN)
    return complaints + [f"dark: {each}" for each in _serious(page, COLOURS)]


def _serious(page: Page, options: dict[str, Any]) -> list[str]:
    violations = page.evaluate("(options) => axe.run(options)", options)["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:160]} ({len(each['nodes'])})"
        for each in violations
        if each["impact"] in SERIOUS
    ]
