"""An organization's people in the console: from the first sign-in to the first request, and at daily work."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from openai import OpenAI
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.browser.conftest import PASSWORD, watched
from tests.clients import programs
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]

PASSPHRASE = "correct horse battery"
PEOPLE = f"""
from django.contrib.auth.models import User
from accounts.models import Member, Organization
for name, organization, role in (
    ("ada", "Globex", "owner"), ("vic", "Globex", "viewer"),
    ("tess", "Tests", "owner"), ("tess", "Hooli", "admin"),
):
    user, is_new = User.objects.get_or_create(username=name)
    if is_new:
        user.set_password("{PASSPHRASE}")
        user.save()
    row, _ = Organization.objects.get_or_create(name=organization)
    Member.objects.create(organization=row, user=user, role=role)
    print(row.name, row.pk)
"""
SLOW = "hello [sandbox tokens=60 delay_ms=100]"
PHONE = {"width": 390, "height": 844}
EVERYTHING = {"resultTypes": ["violations"]}


@pytest.fixture(scope="module")
def ids(installation: Installation) -> dict[str, int]:
    """Make the people and their organizations; return the organizations' numbers."""
    made = installation.manage("shell", "--no-imports", "-c", PEOPLE)
    assert made.returncode == 0, made.stderr
    return {name: int(pk) for name, pk in (line.split() for line in made.stdout.splitlines())}


def sign_in(page: Page, installation: Installation, name: str) -> None:
    page.goto(f"{installation.url}/console/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSPHRASE)
    page.keyboard.press("Enter")
    expect(page.locator("form[action$=sign-out]")).to_be_attached(timeout=20_000)


@pytest.fixture
def context(browser: Browser) -> "Iterator[BrowserContext]":
    """Yield a browser without a session, with a clipboard."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, installation: Installation) -> "Iterator[Page]":
    """Open a page that may log no error and ask no other server."""
    page = watched(context, installation)
    yield page
    assert page.complaints == []  # type: ignore[attr-defined]


def client_of(installation: Installation, secret: str) -> OpenAI:
    return OpenAI(base_url=f"{installation.url}/openai/v1", api_key=secret, max_retries=0)


def test_a_new_organization_gets_to_its_first_request(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    sign_in(page, installation, "ada")
    expect(page).to_have_url(f"{installation.url}/console/{ids['Globex']}/start")
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
    expect(page.locator("#step-key")).to_contain_text("Done")
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
    expect(page.locator(".card").nth(1)).to_contain_text("1")


def test_members_are_invited_and_come_in_by_their_link(
    page: Page, browser: Browser, installation: Installation, ids: dict[str, int]
) -> None:
    sign_in(page, installation, "ada")
    page.get_by_role("link", name="Members").click()
    page.get_by_role("link", name="Invite").click()
    page.get_by_label("User name").fill("bert")
    page.get_by_label("member: create").check()
    page.get_by_role("button", name="Invite").click()
    link = page.get_by_label("Link").input_value()
    page.get_by_role("link", name="All members").click()
    row = page.get_by_role("row", name="bert")
    expect(row).to_contain_text("invited")
    row.get_by_role("combobox").select_option("viewer")
    row.get_by_role("button", name="Save").click()
    expect(page.get_by_text("bert is now viewer.")).to_be_visible()
    other = browser.new_page()
    other.goto(link)
    expect(other.get_by_text("Globex")).to_be_visible()
    expect(other.get_by_text("bert", exact=True)).to_be_visible()
    other.close()
    row.get_by_role("button", name="Remove").click()
    row.get_by_role("button", name="Really remove?").click()
    expect(page.get_by_text("bert is no longer a member.")).to_be_visible()
    page.get_by_role("link", name="Audit log").click()
    expect(page.get_by_role("row", name=re.compile("ada.*deleted")).first).to_be_visible()


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


SCHEMA = """{"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"],
"additionalProperties": false}"""
TOOLS = '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'


def open_playground(page: Page, installation: Installation, ids: dict[str, int], model: str) -> None:
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/playground?model={model}")


def part(page: Page, name: str, column: int = 0) -> Locator:
    """Return a part of one of the playground's answers."""
    return page.locator(f"[data-part={name}]").nth(column)


@pytest.mark.parametrize(
    ("protocol", "dialect", "end"),
    [
        ("chat", "openai", "data: [DONE]"),
        ("chat", "bitseek", '"finish_reason":"stop"'),
        ("responses", "", "event: response.completed"),
        ("messages", "", "event: message_stop"),
        ("completions", "llama", "data: [DONE]"),
    ],
)
@pytest.mark.usefixtures("used")
def test_the_playground_streams_and_its_request_is_charged_like_any_other(
    page: Page,
    installation: Installation,
    ids: dict[str, int],
    protocol: str,
    dialect: str,
    end: str,
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Protocol").select_option(protocol)
    if dialect:
        page.get_by_label("Dialect").select_option(dialect)
    page.get_by_label("Text of the message").fill("hello [sandbox tokens=12]")
    page.get_by_text("Parameters", exact=True).click()
    page.get_by_label("temperature").fill("0.5")
    expect(page.locator("#curl")).to_contain_text('"temperature": 0.5')
    page.get_by_role("button", name="Send").click()
    expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)
    usage = json.loads(part(page, "usage").inner_text())["usage"]
    assert (usage.get("completion_tokens") or usage["output_tokens"]) == 12
    assert end in part(page, "frames").inner_text()
    assert part(page, "answer").inner_text().strip()
    amount = part(page, "amount").inner_text()
    page.get_by_role("link", name="Receipt").click()
    expect(page.locator(".sum")).to_contain_text(amount)
    expect(page.get_by_text("playground (ck_live_")).to_be_visible()


def test_the_playground_stops_two_models_at_once(
    page: Page, installation: Installation, ids: dict[str, int], used: str
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Second model").select_option("sandbox")
    page.get_by_label("Text of the message").fill("hello [sandbox tokens=900 delay_ms=50]")
    page.get_by_role("button", name="Send").click()
    for column in (0, 1):
        expect(part(page, "amount", column)).to_contain_text("≥ $0.0000", timeout=15_000)
    page.get_by_role("button", name="Stop").click()
    for column in (0, 1):
        expect(part(page, "ended", column)).to_contain_text("client cancelled", timeout=15_000)
    expect(page.get_by_role("button", name="Send")).to_be_focused()


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_the_playground_sends_tools_and_schemas_and_names_the_field_that_is_wrong(
    page: Page, installation: Installation, ids: dict[str, int], used: str, protocol: str
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Protocol").select_option(protocol)
    page.get_by_label("Text of the message").fill("[sandbox tool_calls=1]")
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("tools").fill('[{"parameters": {}}]')
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#invalid")).to_contain_text('tools: the function at [0] needs a "name"')
    expect(page.get_by_label("tools")).to_be_focused()
    page.get_by_label("tools").fill(TOOLS)
    page.get_by_role("button", name="Send").click()
    expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)
    assert re.search(r'weather \{.*"city"', part(page, "answer").inner_text())
    page.get_by_label("tools").fill("")
    page.get_by_text("JSON schema", exact=True).click()
    page.get_by_label("schema of the answer").fill(SCHEMA)
    page.get_by_label("Text of the message").fill("How many?")
    page.get_by_role("button", name="Send").click()
    expect(part(page, "answer")).to_contain_text('"seats"', timeout=15_000)


ECHO = """
[[models]]
id = "sandbox-echo"
context_window = 8192
max_output_tokens = 1024
price = { input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2" }
deployments = [{ name = "sandbox", engine = "sandbox" }]
"""


@pytest.fixture
def echo(installation: Installation) -> str:
    """Serve a model that repeats the last message."""
    catalog = installation.folder / "echo.toml"
    catalog.write_text(ECHO)
    done = installation.manage("loadcatalog", str(catalog))
    assert done.returncode == 0, done.stderr
    return "sandbox-echo"


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_the_playgrounds_code_sends_the_same_request(
    page: Page, installation: Installation, ids: dict[str, int], echo: str, protocol: str
) -> None:
    """Quotes, line breaks and backslashes come back as typed."""
    open_playground(page, installation, ids, echo)
    page.get_by_label("Protocol").select_option(protocol)
    prompt = 'it\'s "quoted" \\ and\nin $two `lines` {é}'
    page.get_by_label("Text of the message").fill(prompt)
    page.get_by_text("Parameters", exact=True).click()
    page.get_by_label("temperature").fill("0.25")
    expect(page.locator("#python")).to_contain_text("0.25")
    key = installation.keys["live"]
    code = {
        language: (page.locator(f"#{language}").text_content() or "").replace("YOUR_KEY", key)
        for language in ("curl", "python", "node")
    }
    commands: dict[str, programs.Command] = {
        "curl": ["sh", "-c", code["curl"].replace("curl ", "curl --silent --fail-with-body ", 1)],
        "python": [sys.executable, "-c", code["python"]],
        "node": [programs.NODE, "--input-type=module", "--eval", code["node"]],
    }
    package = "anthropic_node" if protocol == "messages" else "openai_node"
    for language, command in commands.items():
        folder = programs.node_packages(package) if language == "node" else None
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        said = done.stdout if language != "curl" else _said(done.stdout)
        assert prompt in said


def _said(stream: str) -> str:
    """Return the text of a stream's events, in any of the three protocols."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    deltas = [each["choices"][0]["delta"] for each in events if each.get("choices")]
    deltas += [each["delta"] for each in events if each.get("type") == "content_block_delta"]
    pieces = [each.get("content") or each.get("text") or "" for each in deltas]
    pieces += [each["delta"] for each in events if each.get("type") == "response.output_text.delta"]
    return "".join(pieces)


def pages_of(ids: dict[str, int], generation_id: str) -> list[str]:
    home, month = f"/console/{ids['Tests']}", f"{datetime.now(UTC):%Y-%m}"
    rest = (
        "start overview overview?group=key requests keys keys/1 keys/new models models/sandbox "
        "models/sandbox-embedding projects/new budgets/new playground members members/invite audit "
        f"statements statements/{month} requests/{generation_id} requests?outcome=failed "
        "overview?start=2020-01-01&end=2020-01-02"
    )
    return [f"{home}/{path}" for path in rest.split()]


def test_axe_finds_nothing_and_all_pages_fit_a_phone(
    page: Page, installation: Installation, ids: dict[str, int], used: str
) -> None:
    sign_in(page, installation, "tess")
    found: dict[str, list[str]] = {}
    for path in pages_of(ids, used):
        response = page.goto(installation.url + path)
        assert response is not None
        assert response.status == 200, path
        complaints = _complaints(page, "light") + _complaints(page, "dark")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]  # playwright's own type is a private one
        complaints += _complaints(page, "light")
        width, room = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        complaints += [f"{width} px"] if width > room else []
        page.set_viewport_size({"width": 1280, "height": 720})
        found |= {path: complaints} if complaints else {}
    assert found == {}


def _complaints(page: Page, scheme: Any) -> list[str]:
    page.emulate_media(color_scheme=scheme)
    page.evaluate(Axe().axe_script)
    violations = page.evaluate("(options) => axe.run(options)", EVERYTHING)["violations"]
    return [f"{scheme}: {each['id']}: {each['nodes'][0]['html'][:160]}" for each in violations]


def test_the_sign_in_and_error_pages_are_accessible(browser: Browser, installation: Installation) -> None:
    page = browser.new_page()
    for path in ("/console/sign-in", "/console/no-such-page"):
        page.goto(installation.url + path)
        assert _complaints(page, "light") + _complaints(page, "dark") == [], path
    page.close()


def test_the_keyboard_reaches_everything(
    page: Page, installation: Installation, ids: dict[str, int], used: str
) -> None:
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/overview")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.locator(".switcher summary").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Hooli")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Hooli")).to_be_hidden()
    expect(page.locator(".switcher summary")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Hooli").press("Enter")
    expect(page).to_have_title("Start · Hooli · chatapi")
    page.goto(f"{installation.url}/console/{ids['Tests']}/models/sandbox")
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Responses")).to_be_focused()
    expect(page.locator("#responses")).to_contain_text("client.responses.create")


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
    page.goto(f"{installation.url}/console/{ids['Tests']}/keys/new")
    page.get_by_label("Name").fill("short-lived")
    page.get_by_role("button", name="Create the key").click()
    page.get_by_role("link", name="I have copied it").click()
    page.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Really revoke?").click()
    expect(page.get_by_text("The key short-lived is revoked.")).to_be_visible()
    expect(page.get_by_role("button", name="Revoke")).to_have_count(0)


def test_the_operator_enters_any_organization(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    page.goto(f"{installation.url}/console/{ids['Globex']}/keys")
    page.get_by_label("Username").fill("operator")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="API keys")).to_be_visible()
