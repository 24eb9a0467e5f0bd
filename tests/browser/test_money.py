"""An operator and money: corrects a charge, grants credit, takes a list as a file, and finds all of it in the
audit log.
"""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Page, expect

from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def charged(installation: Installation) -> dict[str, Any]:
    """Return the receipt of a request with a charge."""
    with OpenAI(
        base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0
    ) as client:
        answer = client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": "hello [sandbox tokens=20]"}]
        )
    return installation.receipt(answer.id)


def test_a_charge_is_corrected_and_the_client_sees_the_net(
    page: Page, installation: Installation, charged: dict[str, Any]
) -> None:
    page.goto(f"{installation.url}/admin/requests/{charged['id']}")
    page.get_by_role("link", name="Correct", exact=True).click()
    page.get_by_label("Amount (USD)").fill("0.00001")
    page.get_by_label("Reason").fill("answer was cut off")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("row", name="Charge of this request")).to_contain_text(
        f"${charged['amount_usd']}"
    )
    page.get_by_role("button", name="Refund $0.00001").dblclick()
    expect(page).to_have_url(f"{installation.url}/admin/requests/{charged['id']}")
    receipt = installation.receipt(charged["id"])
    assert [correction["amount_nanodollars"] for correction in receipt["corrections"]] == [-10_000]
    assert receipt["net_nanodollars"] == charged["amount_nanodollars"] - 10_000
    expect(page.locator(".sum")).to_contain_text(f"${receipt['net_usd']}")


def test_credit_is_granted_by_keyboard_alone(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/credit/grant")
    page.get_by_label("Organization").focus()
    page.keyboard.type("Tests")
    for text in ("2.50", "invoice 17", "pay_1"):
        page.keyboard.press("Tab")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Is this right?")).to_be_visible()
    page.get_by_role("button", name="Grant $2.50").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Booked: Grant of $2.50")).to_be_visible()
    page.locator("a[href$='/history/']").click()
    expect(page.locator("table.audit")).to_contain_text(
        re.compile(r"granted credit[\s\S]*invoice 17[\s\S]*\$2\.50")
    )


def test_organizations_names_are_offered_while_one_types(page: Page, installation: Installation) -> None:
    page.goto(f"{installation.url}/admin/credit/grant")
    page.get_by_label("Organization").press_sequentially("tes")
    # Also while it still has those of fewer letters.
    expect(page.locator("datalist option")).to_have_text(["Tests"])
    page.goto(f"{installation.url}/admin/accounts/apikey/")
    page.get_by_text("Filters").first.click()
    page.locator("input[name=project__organization__name__exact]").fill("Tests")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("organization__name__exact=Tests"))


@pytest.mark.parametrize("path", ["auth/user/add/", "auth/user/1/change/", "auth/group/add/"])
def test_two_lists_side_by_side_fit_the_page(page: Page, installation: Installation, path: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{installation.url}/admin/{path}")
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] <= widths[1]


def test_a_list_is_taken_as_a_file_while_its_rows_are_counted(
    page: Page, installation: Installation, charged: dict[str, Any]
) -> None:
    page.goto(f"{installation.url}/admin/requests/?model=sandbox")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert charged["id"] in {row["id"] for row in rows}
    expect(page.locator("[data-export] [role=status]")).to_contain_text(f": {len(rows):,} row")
    page.goto(f"{installation.url}/admin/audit/")
    expect(page.locator("table.audit tbody tr").first).to_contain_text("exported")


def test_an_export_that_breaks_off_saves_nothing(
    page: Page, installation: Installation, charged: dict[str, Any]
) -> None:
    page.goto(f"{installation.url}/admin/usage/ledgerentry/")
    page.route(
        "**/export.ndjson*",
        lambda route: route.fulfill(status=200, content_type="text/html", body="", headers={}),
    )
    page.get_by_role("link", name="NDJSON", exact=True).click()
    expect(page.locator("[data-export] [role=status]")).to_contain_text("nothing was saved")


def test_exports_and_forms_work_without_javascript(
    browser: Browser, installation: Installation, session: Any, charged: dict[str, Any]
) -> None:
    context = browser.new_context(storage_state=session, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{installation.url}/admin/requests/")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    assert Path(download.value.path()).read_text().startswith("id,admitted_at")
    page.goto(f"{installation.url}/admin/requests/{charged['id']}")
    page.get_by_role("link", name="Correct", exact=True).click()
    page.get_by_label("Amount (USD)").fill("0.000001")
    page.get_by_label("Reason").fill("why")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="Is this right?")).to_be_visible()
    page.goto(f"{installation.url}/admin/credit/grant")
    for label, text in (("Organization", "Tests"), ("Amount (USD)", "1"), ("Reason", "why")):
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("definition").first).to_have_text("Tests")
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(
    browser: Browser, installation: Installation, session: Any, charged: dict[str, Any], theme: Any
) -> None:
    context = browser.new_context(
        storage_state=session, viewport={"width": 390, "height": 844}, color_scheme=theme
    )
    page = context.new_page()
    for path in [
        "audit/",
        "credit/grant",
        "credit/refund",
        "usage/ledgerentry/",
        "usage/budget/",
        f"requests/{charged['id']}",
    ]:
        page.goto(f"{installation.url}/admin/{path}")
        expect(page.locator(".operator").first).to_be_visible()
        widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1], path
    context.close()
