"""An operator at the catalog: imports a file, tests what it deployed, and looks at what it costs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

COUNT_CLICKS = """
addEventListener("click", (event) => {
    if (event.isTrusted && event.detail) sessionStorage.clicks = Number(sessionStorage.clicks ?? 0) + 1;
}, true);
"""
MODEL = """
[[models]]
id = "imported"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "1", output_per_mtok = "{price}" }}
[[models.deployments]]
engine = "openai_compatible"
name = "vllm"
base_url = "{url}/v1"
upstream_model = "fake"
"""


@pytest.fixture(scope="module")
def context(browser: Browser, session: Any) -> Iterator[BrowserContext]:
    """Yield the operator's browser, for all tests of this file."""
    context = browser.new_context(storage_state=session)
    yield context
    context.close()


def import_file(page: Page, installation: Installation, file: Path) -> None:
    """Choose the file, look at what it changes, and apply it."""
    page.goto(f"{installation.url}/admin/catalog/import")
    page.get_by_label("TOML file").set_input_files(file)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name=f"What {file.name} would change")).to_be_visible()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text(re.compile("It takes effect within a second"))).to_be_visible()


@pytest.fixture(scope="module")
def imported(
    context: BrowserContext, installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Import a model, and then another price of it, by files."""
    page, file = context.new_page(), tmp_path_factory.mktemp("catalog") / "catalog.toml"
    for price in ("2", "3"):
        file.write_text(MODEL.format(url=installation.upstream_url, price=price))
        import_file(page, installation, file)
    page.close()
    return "imported"


def test_what_was_imported_is_tested_with_one_token(
    page: Page, imported: str, installation: Installation
) -> None:
    page.goto(f"{installation.url}/admin/chatapi/deployment/?q={imported}")
    page.get_by_role("link", name=f"Test {imported} by vllm").click()
    page.get_by_role("button", name="Test now").click()
    result = page.get_by_role("status")
    expect(result).to_contain_text("it works")
    expect(result.locator("dl")).to_contain_text("7 in, 1 out")


def test_a_new_models_upstream_lists_its_models_and_a_click_fills_the_form_in(
    page: Page, imported: str, installation: Installation
) -> None:
    page.goto(f"{installation.url}/admin/chatapi/servedmodel/add/")
    page.get_by_role("button", name="List its models").click()
    chooser = page.locator(".upstream-model:has(#id_deployments-0-upstream_model)")
    status = chooser.locator("[role=status]")
    expect(status).to_contain_text("The base URL '' must be a URL")
    page.locator("[name=deployments-0-base_url]").fill(f"{installation.upstream_url}/v1/wrong")
    page.get_by_role("button", name="List its models").click()
    expect(status).to_have_text("It has no list of models (404). Does the base URL end in /v1?")
    page.locator("[name=deployments-0-base_url]").fill(f"{installation.upstream_url}/v1")
    page.get_by_role("button", name="List its models").click()
    expect(status).to_have_text(re.compile(r"^\d+ models?:$"))
    field = page.locator("[name=deployments-0-upstream_model]")
    field.press_sequentially("FAK")
    expect(chooser.locator(".names button:visible")).to_have_text(["fake"])
    chooser.get_by_role("button", name="fake", exact=True).click()
    expect(field).to_have_value("fake")
    expect(page.locator("[name=id]")).to_have_value("fake")
    expect(status).to_have_text("fake is chosen.")
    page.locator("[name=deployments-0-name]").fill("listed")
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto(f"{installation.url}/admin/chatapi/deployment/?q=listed")
    page.get_by_role("link", name="Test fake by listed").click()
    page.get_by_role("button", name="Test now").click()
    expect(page.get_by_role("status")).to_contain_text("it works")


def test_a_price_s_timeline_is_one_click_from_its_model(
    page: Page, imported: str, installation: Installation
) -> None:
    page.goto(f"{installation.url}/admin/chatapi/servedmodel/?q={imported}")
    page.get_by_role("link", name=re.compile(f"Prices of {imported}")).click()
    expect(page.get_by_role("img", name="Prices over time")).to_be_visible()
    entries = page.locator("ol.timeline > li")
    expect(entries).to_have_count(2)
    expect(entries.first).to_contain_text("in effect")
    expect(entries.first).to_contain_text("+50 %")
    page.get_by_role("link", name="New price").click()
    expect(page.get_by_label("Output")).to_have_value("3")


def test_the_export_is_a_file_that_changes_nothing_when_it_is_imported(
    page: Page, imported: str, installation: Installation, tmp_path: Path
) -> None:
    page.goto(f"{installation.url}/admin/catalog/import")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export the current catalog").click()
    exported = tmp_path / download.value.suggested_filename
    download.value.save_as(exported)
    page.get_by_label("TOML file").set_input_files(exported)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("Nothing: the catalog already matches the file.")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(
    page: Page, imported: str, installation: Installation, theme: Any
) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": 390, "height": 844})
    paths = [
        "catalog/import",
        f"prices/?model={imported}",
        "chatapi/deployment/",
        "usage/price/",
        f"chatapi/servedmodel/{imported}/change/",
    ]
    for path in paths:
        page.goto(f"{installation.url}/admin/{path}")
        widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1], path


def test_a_new_upstream_model_with_its_key_takes_six_clicks_and_no_restart(
    page: Page, installation: Installation
) -> None:
    installation.script("behind-a-key")
    page.add_init_script(COUNT_CLICKS)
    page.goto(f"{installation.url}/admin/")
    page.get_by_role("link", name="Models").click()
    page.get_by_title("Add model").click()
    page.get_by_role("textbox", name=re.compile(r"^Id")).fill("typed")
    page.get_by_role("textbox", name=re.compile(r"^Name")).fill("vllm")
    page.get_by_role("textbox", name="Base URL").fill(f"{installation.upstream_url}/v1")
    page.get_by_role("textbox", name="Upstream's model").fill("behind-a-key")
    page.locator("[type=password]:visible").fill("sk-typed")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("typed is not served yet.")).to_be_visible()
    page.get_by_role("link", name="Set its price").click()
    page.get_by_role("textbox", name=re.compile(r"^Input")).fill("1")
    page.get_by_label("Output").fill("2")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("typed is served.")).to_be_visible()
    assert int(page.evaluate("sessionStorage.clicks")) <= 6
    client = Client(installation.url, installation.keys["live"])
    wait_for(lambda: client.complete("typed").status == 200, "the model")
    assert installation.calls("behind-a-key")[-1]["headers"]["Authorization"] == "Bearer sk-typed"
    assert "sk-typed" not in page.content()
