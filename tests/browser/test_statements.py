"""Statements in a browser: found in two clicks, readable on a phone and in the dark, and printed alone."""

import re
from collections.abc import Callable
from pathlib import Path

import pypdfium2  # type: ignore[import-untyped]  # it brings no types
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from playwright.sync_api import Page, expect

from tests.browser.visiting import OF_THE_THEME, SERIOUS, SHOTS, shot
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("console"), pytest.mark.timeout(180)]

# As the theme does it; nothing may still be on its way from one colour to the other.
DARKEN = (
    "document.documentElement.classList.add('dark'); "
    "document.getAnimations().forEach((each) => each.finish());"
)
# Two months that are over, and this one, as a reaper issues them.
MAKE = """
import random
from datetime import timedelta
from tests.usage.billing_months import FIRST_PRICE, LATER_PRICE, NOTE, close_all, correct, keys_of, use
from usage.books import credit, prices
from usage.database.clock import database_now
from usage.models import Discount
from usage.statements.month import Month
keys = keys_of("Statement Co")
chance, this_month = random.Random(1), Month.of(database_now())
first = this_month.previous.previous.start
for model in ("small", "large"):
    prices.change(model, FIRST_PRICE, first - timedelta(days=1))
    prices.change(model, LATER_PRICE, first + timedelta(days=40))
Discount.objects.create(
    organization=keys[0].project.organization, basis_points=1_250, effective_from=first - timedelta(days=1)
)
credit.grant(keys[0].project.organization, 5 * 10**9, NOTE)
for hours in (*range(30, 1_400, 35), 1):
    moment = first + timedelta(hours=hours) if hours > 1 else database_now()
    use(chance, chance.choice(keys), moment, completion=chance.randrange(1, 600))
correct(chance, keys, database_now(), is_rerating=False)
close_all()
"""


@pytest.fixture(scope="module", autouse=True)
def statements(installation: Installation) -> None:
    """Make an organization with statements."""
    installation.shell(MAKE)


def complaints(page: Page) -> list[str]:
    found = Axe().run(page, options=OF_THE_THEME).response["violations"]
    return [each["id"] for each in found if each["impact"] in SERIOUS]


def open_latest(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/")
    page.get_by_role("link", name="Statements").click()
    page.get_by_role("table").get_by_role("link").first.click()


def test_what_is_owed_takes_two_clicks(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/")
    page.get_by_role("link", name="Statements").click()
    shot(page, "statements list")
    assert complaints(page) == []
    page.get_by_role("table").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Statement Co")).to_be_visible()
    expect(page.get_by_text("Closing balance")).to_be_visible()
    shot(page, "statements closed")
    assert complaints(page) == []
    page.evaluate(DARKEN)
    shot(page, "statements closed-dark")
    assert complaints(page) == []


def test_a_preview_says_so_and_fits_a_phone(page: Page, installation: Installation) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/admin/statements/")
    shot(page, "statements list-phone")
    page.get_by_role("link", name="Statement Co").click()
    expect(page.get_by_text("Preview, as of")).to_be_visible()
    expect(page.get_by_role("heading", name="Credit notes")).to_be_visible()
    shot(page, "statements preview-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints(page) == []
    page.set_viewport_size({"width": 1440, "height": 900})
    shot(page, "statements preview")


def open_latest_in_console(page: Page, installation: Installation) -> None:
    """Open what the organization's people see."""
    open_latest(page, installation)
    organization, month = re.findall(r"/statements/(\d+)/([\d-]+)", page.url)[0]
    page.goto(f"{installation.url}/console/{organization}/statements/{month}")


@pytest.mark.parametrize("open_it", [open_latest, open_latest_in_console])
def test_it_prints_alone(
    page: Page, installation: Installation, open_it: Callable[[Page, Installation], None]
) -> None:
    open_it(page, installation)
    expect(page.get_by_role("heading", name="Statement Co,")).to_be_visible()
    pdf = page.pdf(format="A4")
    document = pypdfium2.PdfDocument(pdf)
    text = "\n".join(each.get_textpage().get_text_bounded() for each in document)
    if SHOTS:
        document[0].render(scale=1.5).to_pil().save(Path(SHOTS) / "statements-print.png")
    document.close()
    assert "Closing balance" in text
    assert "Overview" not in text
    assert "CSV" not in text


@pytest.mark.parametrize("name", ["PDF", "CSV", "JSON"])
def test_its_files_are_downloads(page: Page, installation: Installation, name: str) -> None:
    open_latest(page, installation)
    with page.expect_download() as download:
        page.get_by_role("link", name=name, exact=True).click()
    assert download.value.suggested_filename.endswith(f".{name.lower()}")
