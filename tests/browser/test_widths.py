"""No list loses a column, on a small laptop or on a phone, with names of any length."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

LISTS = [
    "", "organizations/1", "budgets/", "live/", "requests/", "requests/{id}", "audit/",
    *(f"accounts/{model}/" for model in ("organization", "project", "member", "apikey", "ratelimit")),
    "usage/generation/", "usage/ledgerentry/", "usage/hourlyusage/", "usage/budget/", "usage/budgetlimit/",
    "usage/credit/", "usage/price/", "usage/discount/", "usage/event/",
    "chatapi/servedmodel/", "chatapi/deployment/",
]  # fmt: skip
LONG_MODEL = "an-organization/Its-Model-4.5-70B-Instruct-Turbo_of_the_year"
CATALOG = f"""
[[models]]
id = "{LONG_MODEL}"
context_window = 131072
max_output_tokens = 16384
price = {{ input_per_mtok = "1234.5678", cached_input_per_mtok = "0.123456", output_per_mtok = "2345.6789" }}
[[models.deployments]]
engine = "sandbox"
name = "the-one-in-the-cellar_with_the_large_cards"
[[models.deployments]]
engine = "openai_compatible"
name = "its-neighbour"
priority = 1
base_url = "https://a-company-with-a-name.region-of-its-own.upstream.example.com/openai/deployments/v1"
api_key_env = "THE_UPSTREAM_OF_A_REGION_API_KEY"
"""
MAKE = f"""
import json
from django.contrib.auth.models import User
from django.utils import timezone
from accounts.keys import create_key, get_or_create_project
from accounts.models import APIKey, Member, RateLimit
from usage.books import credit
from usage.models import BudgetLimit
project = get_or_create_project("Donaudampfschifffahrtsgesellschaft mbH and Co KG", "Kundenservicechatbot")
row, secret = create_key(project, name="produktionsschluessel_des_chatbots")
widest, _ = create_key(project, name="the widest letters")
APIKey.objects.filter(pk=widest.pk).update(public="W" * 12, revoked_at=timezone.now())
name = "margarethe.von.hohenstein"
user = User.objects.create_user(name, email=f"{{name}}@subsidiary.example.com")
Member.objects.create(user=user, organization=project.organization, role="owner")
RateLimit.objects.create(
    api_key=row, model="{LONG_MODEL}", tokens_per_day=9_000_000_000, requests_per_day=1_000_000
)
BudgetLimit.objects.create(
    scope="key", scope_id=row.pk, period="month", limit_nanodollars=98_765_432_123_456_789
)
credit.grant(project.organization, 98_765_432_123_456_789, credit.Note("invoice 7", "the tests"))
print(json.dumps(secret))
"""
WIDE_VALUES = """() => {
  for (const count of document.querySelectorAll(".key-requests > span")) count.textContent = "1,234,567";
  for (const age of document.querySelectorAll("[data-is=age]")) age.textContent = "119 min";
}"""
"""Shows more requests of keys, and older running ones, than a test can make."""
MANY_REQUESTS_OF_KEYS = """(cells) => cells.forEach((cell) => {
  const texts = ["$98,765,432.12", "999k requests", "999G tokens"];
  texts.forEach((text, place) => { cell.childNodes[place].textContent = text; });
})"""
"""Shows the widest amounts and counts in the Overview's "Top keys"."""
CUT = """() => [...document.querySelectorAll(
  "#result_list tbody :is(th, td), .operator .scroll tbody :is(th, td)"
)].filter((cell) => {
  if (!cell.checkVisibility()) return false;
  const list = cell.closest(".simplebar-content-wrapper, .scroll");
  const edge = Math.min(innerWidth, list.getBoundingClientRect().right);
  return cell.getBoundingClientRect().right > edge + 1 || cell.scrollWidth > cell.clientWidth + 1;
}).map((cell) => `${cell.className.split(" ")[0]}: ${cell.innerText}`)"""
"""The cells that end beyond what is seen of their list, and those that are smaller than what is in them."""


@pytest.fixture(scope="module")
def client(installation: Installation) -> Iterator[OpenAI]:
    """Return a client of a key with a long name, in a project and organization with long names."""
    installation.load_catalog(CATALOG)
    key = json.loads(installation.shell(MAKE))
    with OpenAI(base_url=f"{installation.url}/openai/v1", api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def running(installation: Installation, client: OpenAI) -> Iterator[str]:
    """Run a generation until the end of the tests, beside a settled one; yield its id."""

    def ask(content: str) -> Any:
        return client.chat.completions.create(
            model=LONG_MODEL, messages=[{"role": "user", "content": content}], stream=True
        )

    list(ask("hello"))
    with ask("hello [sandbox tokens=4000 delay_ms=50]") as stream:
        yield next(iter(stream)).id


@pytest.mark.parametrize("width", [1280, 390])
def test_no_list_loses_a_column(page: Page, installation: Installation, running: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    lost = {}
    for path in LISTS:
        page.goto(f"{installation.url}/admin/{path.format(id=running)}")
        page.evaluate(WIDE_VALUES)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        lost[path] = page.evaluate(CUT)
    assert {path: cells for path, cells in lost.items() if cells} == {}


BUSY_KEY = """
from accounts.models import APIKey
print(APIKey.objects.get(name="produktionsschluessel_des_chatbots").pk)
"""
MILLIONS = """(cells) => cells.forEach((cell) => { cell.textContent = "$2,260,352.263460000"; })"""
LINES = """(element) => {
  const text = document.createRange();
  text.selectNodeContents(element);
  return text.getClientRects().length;
}"""


def test_budgets_of_a_key_are_not_cut_where_millions_are_spent(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/admin/accounts/apikey/{installation.shell(BUSY_KEY)}/change/")
    budgets = page.get_by_role("region", name="Table of budgets")
    budgets.locator("tbody td.num:nth-child(2)").evaluate_all(MILLIONS)
    assert budgets.evaluate("(region) => region.scrollWidth <= region.clientWidth")


def test_sums_of_a_statement_have_one_line_on_a_phone(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/console/{installation.shell(HOME)}/statements")
    page.get_by_role("main").get_by_role("link", name=re.compile(r"20\d\d")).first.click()
    sums = page.locator("tr.project td.num")
    sums.evaluate_all(MILLIONS)
    assert [each.evaluate(LINES) for each in sums.all()] == [1]


def test_an_address_breaks_at_its_sign_first(page: Page, installation: Installation, client: OpenAI) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/console/{installation.shell(HOME)}/members")
    cell = page.locator("td[data-label=E-mail]", has_text="margarethe")
    expect(cell).to_have_text("margarethe.von.hohenstein@subsidiary.example.com")
    assert cell.inner_html().count("@<wbr>") == 1


LONG_END_USER = "customer-" + "7f3a9c" * 19
HOME = "from accounts.models import Organization; print(Organization.objects.get(name__endswith=' KG').pk)"


def test_long_names_of_end_users_fit_a_phone(page: Page, installation: Installation, client: OpenAI) -> None:
    client.chat.completions.create(
        model=LONG_MODEL, messages=[{"role": "user", "content": "hello"}], user=LONG_END_USER
    )
    home = installation.shell(HOME)
    page.set_viewport_size({"width": 390, "height": 844})
    overviews = (
        f"console/{home}/overview?outcome=completed",
        f"admin/?organization={home}&outcome=completed",
    )
    for path in (f"console/{home}/usage?days=1", *overviews):
        for query in ("group=end_user", f"group=model&end_user={LONG_END_USER}"):
            page.goto(f"{installation.url}/{path}&{query}")
            expect(page.get_by_role("link", name=LONG_END_USER[:40]).first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, (path, query)


SHORT_KEY = """
from accounts.keys import create_key, get_or_create_project
create_key(get_or_create_project("Donaudampfschifffahrtsgesellschaft", "Kundenservice"), name="key 199")
"""
WIDEST_LETTERS = """(links) => {
  for (const link of links) link.textContent = link.textContent.replace(/ck_live_.{4}/, "ck_live_WWWM");
}"""
# Whether the key in parentheses at the end of a text is in one line.
ENDS_WHOLE = """(element) => {
  const text = document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode();
  const range = document.createRange();
  range.setStart(text, text.data.lastIndexOf("("));
  range.setEnd(text, text.length);
  return range.getClientRects().length === 1;
}"""


def test_a_small_laptop_breaks_no_short_text(page: Page, installation: Installation, running: str) -> None:
    installation.shell(SHORT_KEY)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/admin/accounts/apikey/")
    name = page.get_by_role("link", name="key 199", exact=True)
    assert name.evaluate("(link) => link.getClientRects().length") == 1
    page.goto(f"{installation.url}/admin/usage/price/")
    for date in page.locator("#result_list th.field-begins a").all():
        assert date.evaluate("(link) => link.getClientRects().length") == 1, date.inner_text()
    for model in ("accounts/apikey", "usage/refusedrequests"):
        page.goto(f"{installation.url}/admin/{model}/")
        field = page.locator("#searchbar")
        field.fill(field.get_attribute("placeholder") or "")
        assert field.evaluate("(field) => field.scrollWidth <= field.clientWidth"), model
    page.goto(f"{installation.url}/admin/")
    keys = page.locator(".panel", has=page.get_by_role("heading", name="Top keys"))
    keys.locator("tbody .who a").evaluate_all(WIDEST_LETTERS)
    expect(keys).to_contain_text("WWWM…")
    keys.locator("td.num").evaluate_all(MANY_REQUESTS_OF_KEYS)
    for link in keys.locator("tbody .who a").all():
        assert link.evaluate(ENDS_WHOLE), link.inner_text()


def test_numbers_and_their_headers_are_at_the_right_of_a_list(
    page: Page, installation: Installation, client: OpenAI
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/admin/accounts/ratelimit/")
    expect(page.locator("#result_list td.field-tokens_per_day").first).to_have_css("text-align", "right")
    header = page.locator("#result_list th.column-tokens_per_day > div")
    expect(header).to_have_css("justify-content", "flex-end")


def test_a_small_laptop_has_the_usual_filters_in_one_row(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/admin/requests/")
    bottoms = page.locator("form[role=search] > .filters > *").evaluate_all(
        "(fields) => fields.filter((each) => each.checkVisibility())"
        ".map((each) => each.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 7
    assert max(bottoms) - min(bottoms) < 2


NOTHING_SPENT = """
from accounts.keys import get_or_create_project
print(get_or_create_project("Whole cents", "default").organization_id)
"""
ENDS = """(cells) => cells.map((cell) => {
  const text = document.createRange();
  text.selectNodeContents(cell);
  return text.getBoundingClientRect().right;
})"""
"""Where the contents of these cells end, with zeros that are not seen."""


def test_amounts_of_whole_cents_end_where_their_title_ends(page: Page, installation: Installation) -> None:
    organization = installation.shell(NOTHING_SPENT)
    page.goto(f"{installation.url}/admin/organizations/{organization}")
    table = page.locator(".panel", has=page.get_by_role("heading", name="Projects")).locator("table")
    amounts = table.locator("td.num", has=page.locator(".zeros"))
    assert not any(each.is_visible() or each.bounding_box() for each in amounts.locator(".zeros").all())
    assert amounts.count() > 0
    (title, *_) = table.locator("thead th.num").evaluate_all(ENDS)
    assert all(abs(end - title) < 1 for end in amounts.evaluate_all(ENDS))


def test_fields_beside_each_other_begin_at_one_height(page: Page, installation: Installation) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/admin/chatapi/deployment/add/")
    for names in (("api_key", "api_key_env"), ("priority", "weight")):
        tops = [
            page.locator(f"#id_{name}").evaluate("(field) => field.getBoundingClientRect().top")
            for name in names
        ]
        assert tops[0] == tops[1], names


def test_a_switchs_label_has_one_line_on_a_phone(page: Page, installation: Installation) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/admin/accounts/project/add/")
    label = page.locator("label[for=id_stores_metadata]")
    assert label.evaluate("(label) => label.getClientRects().length") == 1


def test_the_menu_beside_two_lists_is_in_its_card_on_a_phone(page: Page, installation: Installation) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/admin/auth/user/1/change/")
    right = "(element) => element.getBoundingClientRect().right"
    wrapper = page.locator(".related-widget-wrapper:has(> .selector)").first
    menu = wrapper.locator("[x-ref], [aria-haspopup]").last.evaluate(right)
    assert menu <= wrapper.evaluate(right) + 1


def test_amounts_end_at_the_edge_on_a_phone(page: Page, installation: Installation, running: str) -> None:
    """Zeros keep the points of a column below each other; on a phone there is no column."""
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("accounts/apikey/", "usage/ledgerentry/", "requests/"):
        page.goto(f"{installation.url}/admin/{path}")
        zeros = page.locator(":is(#result_list, table.stacked) .zeros")
        assert zeros.count() > 0
        assert not any(each.is_visible() or each.bounding_box() for each in zeros.all())


def test_what_runs_is_seen_and_stopped_on_a_phone(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/admin/live/")
    row = page.locator(f"[data-id={running}]")
    for name in ("state", "tokens", "held"):
        expect(row.locator(f"[data-is={name}]")).to_be_in_viewport(ratio=1)
    expect(row.get_by_role("button", name="Stop")).to_be_in_viewport(ratio=1)


def test_a_running_cost_is_in_one_line_on_a_phone(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/console/{installation.shell(HOME)}/live")
    cost = page.locator(f"[data-id={running}] [data-is=cost]")
    expect(cost).to_contain_text("$")
    cost.evaluate("(cell) => { cell.textContent = '≥\\u00a0$12.345678'; }")
    assert cost.evaluate(LINES) == 1
    assert cost.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")


def test_a_table_that_is_too_wide_shows_it_and_scrolls_by_keyboard(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/admin/")
    page.get_by_text("These numbers as a table").click()
    box = page.get_by_role("region", name="The chart's numbers")
    box.locator("table").evaluate("(table) => { table.style.width = '60rem'; }")
    assert "local" in box.evaluate("(box) => getComputedStyle(box).backgroundAttachment"), (
        "no shadow at the edge"
    )
    box.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(box) => box.scrollLeft > 0", arg=box.element_handle())
    expect(box.locator("tbody th").first).to_be_in_viewport(ratio=1)


OVERLAPS = """() => {
  const texts = [...document.querySelectorAll(".frame text, .amounts dt, .amounts strong, .amounts .change")]
    .filter((each) => each.checkVisibility()).map((each) => [each.textContent, each.getBoundingClientRect()]);
  return texts.flatMap(([text, a], at) => texts.slice(at + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1
      && a.top < b.bottom - 3 && b.top < a.bottom - 3)
    .map(([other]) => `${text} over ${other}`));
}"""
"""The labels of charts and the prices that lie over others."""
LINES = (
    "(cell) => new Set([...cell.childNodes].flatMap((node) => { const range = document.createRange();"
    " range.selectNodeContents(node); return [...range.getClientRects()].map((each) => each.top); })).size"
)


# A first price, half of which is $0.50, with a next one announced; and a price that has changed today.
PRICES = """
from datetime import timedelta
from usage.books import prices
from usage.database.clock import database_now
from usage.pricing import Price
now = database_now()
low, high = (Price(amount, amount, amount) for amount in (500_000_000, 1_000_000_000))
for model, *days in (("announced", 0, 30), ("changed", -30, 0)):
    for price, day in zip((low, high), days, strict=True):
        prices.change(model, price, now + timedelta(days=day))
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_of_a_chart_lies_over_another(
    page: Page, installation: Installation, running: str, width: int
) -> None:
    home = installation.shell(HOME)
    installation.shell(PRICES)
    page.set_viewport_size({"width": width, "height": 800})
    of_usage = ("admin/", f"console/{home}/overview", f"console/{home}/usage")
    for url in (
        *(f"{path}?days={days}" for path in of_usage for days in (1, 7, 90)),
        *(f"admin/prices/?model={model}" for model in ("announced", "changed")),
    ):
        page.goto(f"{installation.url}/{url}")
        expect(page.locator(".frame svg.plot").first).to_be_visible()
        assert page.evaluate(OVERLAPS) == [], url


def test_a_date_of_a_charts_table_is_in_one_line(
    page: Page, installation: Installation, running: str
) -> None:
    home = installation.shell(HOME)
    for path in ("admin/", f"console/{home}/overview", f"console/{home}/usage"):
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(f"{installation.url}/{path}?days=7&group=model")
            for summary in page.get_by_text("These numbers as a table").all():
                summary.click()
            dates = page.locator("details[open] tbody th")
            assert dates.count() >= 7
            assert {date.evaluate(LINES) for date in dates.all()} == {1}, (path, width)


def test_a_row_of_live_has_one_line_below_it(page: Page, installation: Installation, running: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 800})
    page.goto(f"{installation.url}/admin/live/")
    row = page.locator(f"[data-id={running}]")
    cells = row.locator("td").evaluate_all(
        "(cells) => cells.map((each) => each.getBoundingClientRect())"
        ".map(({left, right, bottom}) => [left, right, bottom])"
    )
    assert max(bottom for _, _, bottom in cells) - min(bottom for _, _, bottom in cells) < 1
    ends = [right for _, right, _ in cells]
    assert all(abs(left - end) < 1 for (left, _, _), end in zip(cells[1:], ends, strict=False))
    model = row.locator("[data-is=model]")
    model.evaluate("(cell) => { cell.textContent = 'claude-sonnet-4-5-20250929'; }")
    assert model.evaluate(LINES) == 1


LETTERS_BEFORE_BREAKS = """(cell) => {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
  const found = [];
  let before = null;
  while (texts.nextNode()) for (let at = 0; at < texts.currentNode.length; at++) {
    range.setStart(texts.currentNode, at);
    range.setEnd(texts.currentNode, at + 1);
    const here = {top: range.getBoundingClientRect().top, letter: range.toString()};
    if (before && here.top > before.top + 4) found.push(before.letter);
    before = here;
  }
  return found;
}"""
TWO_LINES_AT_MOST = "(text) => text.clientHeight <= 2 * parseFloat(getComputedStyle(text).lineHeight) + 1"


def test_live_breaks_models_after_slashes_and_hyphens_and_cuts_owners(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/admin/live/")
    row = page.locator(f"[data-id={running}]")
    model = row.locator("[data-is=model]")
    for is_of_script in (False, True):
        if is_of_script:
            # The feed's next message has the name again.
            model.evaluate("(cell) => { cell.textContent = ''; }")
        expect(model).to_have_text(LONG_MODEL)
        breaks = model.evaluate(LETTERS_BEFORE_BREAKS)
        assert breaks
        assert set(breaks) <= {"/", "-"}
    for name in ("who", "key"):
        text = row.locator(f"[data-is={name}]")
        assert text.evaluate(TWO_LINES_AT_MOST), name
        assert text.get_attribute("title") == text.text_content()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    table = page.get_by_role("region", name="Table of generations in flight")
    assert table.evaluate("(box) => box.scrollWidth <= box.clientWidth")


LONG_PROJECT = "the project of a department with a name that says all that it does " * 2
MANY_BUDGETS = f"""
from accounts.keys import create_key, get_or_create_project
from usage.models import BudgetLimit
for number in range(20):
    project = get_or_create_project("Many budgets", f"{{number:02}} {LONG_PROJECT}"[:100])
    for period in ("day", "month", "ever") if number < 8 else ():
        BudgetLimit.objects.create(
            scope="project", scope_id=project.pk, period=period, limit_nanodollars=98_765_432_123_456_789
        )
create_key(project, name="of a long project")
print(project.organization_id)
"""


def test_many_budgets_are_a_short_page_on_a_phone(page: Page, installation: Installation) -> None:
    home = installation.shell(MANY_BUDGETS)
    for width, most in ((390, 5_500), (1280, 3_500)):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{installation.url}/console/{home}/budgets")
        table = page.get_by_role("region", name="Table of what has no limit")
        expect(table).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollHeight") <= most, width
        page.get_by_role("heading", name="Without a limit").click()
        expect(table.locator("tbody tr")).to_have_count(13)
        expect(table.locator("tbody tr").last).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_keys_of_a_project_with_a_long_name_have_low_rows(page: Page, installation: Installation) -> None:
    installation.shell(MANY_BUDGETS.replace("Many budgets", "Long names"))
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{installation.url}/admin/accounts/apikey/?q=of+a+long+project")
    project = page.locator("#result_list .field-project_name .cut").first
    assert project.evaluate(TWO_LINES_AT_MOST)
    assert project.get_attribute("title") == f"19 {LONG_PROJECT}"[:100]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_button_of_a_range_is_beside_a_field_on_a_phone(
    page: Page, installation: Installation, running: str
) -> None:
    home = installation.shell(HOME)
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("usage", "usage?days=1", "overview"):
        page.goto(f"{installation.url}/console/{home}/{path}")
        form = page.locator("form.range")
        bottom = "(each) => each.getBoundingClientRect().bottom"
        button = form.get_by_role("button", name="Show").evaluate(bottom)
        bottoms = form.locator("> :is(label, details)").evaluate_all(f"(fields) => fields.map({bottom})")
        assert any(abs(each - button) < 3 for each in bottoms), path


def test_what_is_said_of_prompts_has_a_gap_around_it(
    page: Page, installation: Installation, running: str
) -> None:
    home = installation.shell(HOME)
    for path in (f"admin/requests/{running}", f"console/{home}/requests/{running}"):
        page.goto(f"{installation.url}/{path}")
        gaps = page.get_by_text("Prompts and answers are not stored").first.evaluate(
            "(text) => { const box = text.getBoundingClientRect();"
            " const [before, after] = [text.previousElementSibling, text.nextElementSibling];"
            " return [before && box.top - before.getBoundingClientRect().bottom,"
            " after && after.getBoundingClientRect().top - box.bottom].filter((gap) => gap !== null); }"
        )
        assert gaps, path
        assert min(gaps) >= 8, path


def test_amounts_keep_a_distance_from_a_cards_edge_on_a_phone(
    page: Page, installation: Installation, running: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}/admin/requests/")
    settled = page.locator("table.stacked .id a", has_not_text=running[-8:]).first.get_attribute("href")
    page.goto(f"{installation.url}{settled}")
    entries = page.locator(".panel", has=page.get_by_role("heading", name="Ledger entries"))
    edge = entries.evaluate("(panel) => panel.getBoundingClientRect().right")
    amounts = entries.locator("td.num").evaluate_all(
        "(cells) => cells.map((cell) => { const range = document.createRange();"
        " range.selectNodeContents(cell); return range.getBoundingClientRect().right; })"
    )
    assert amounts
    assert max(amounts) <= edge - 8


def test_a_range_of_dates_and_times_has_room(page: Page, installation: Installation, running: str) -> None:
    home = installation.shell(HOME)
    query = "start=2026-10-25T10:30&end=2026-11-25T20:45"
    for path in (
        "admin/",
        "admin/requests/",
        *(f"console/{home}/{name}" for name in ("overview", "usage", "requests")),
    ):
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            page.goto(f"{installation.url}/{path}?{query}")
            for name in ("start", "end"):
                field = page.locator(f"input[name={name}]:not([type=hidden])")
                assert field.evaluate("(field) => field.scrollWidth <= field.clientWidth"), (
                    path,
                    width,
                    name,
                )


def test_the_button_to_find_requests_is_beside_a_field(
    page: Page, installation: Installation, running: str
) -> None:
    home = installation.shell(HOME)
    page.set_viewport_size({"width": 1280, "height": 800})
    for path in ("admin/requests/", f"console/{home}/requests"):
        for query in ("", "?start=2026-10-25T10:30&end=2026-11-25T20:45"):
            page.goto(f"{installation.url}/{path}{query}")
            form = page.get_by_role("search", name="Find requests")
            bottom = "(each) => each.getBoundingClientRect().bottom"
            button = form.get_by_role("button", name="Find").evaluate(bottom)
            bottoms = form.locator("label").evaluate_all(f"(fields) => fields.map({bottom})")
            assert any(abs(each - button) < 3 for each in bottoms), (path, query)
