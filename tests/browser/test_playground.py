"""The console's playground: every protocol, two models, tools and schemas, and the same request as code."""

import json
import re
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import sign_in
from tests.clients import programs
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]

SCHEMA = """{"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"],
"additionalProperties": false}"""
RECORDS_AMOUNTS = """amount => {
  window.amounts = [];
  new MutationObserver(() => window.amounts.push(amount.textContent)).observe(amount, { childList: true });
}"""
TOOLS = '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'


@pytest.fixture
def page(visitor: Page) -> Page:
    """Return a page without a session."""
    return visitor


def open_playground(page: Page, installation: Installation, ids: dict[str, int], model: str) -> None:
    sign_in(page, installation, "tess")
    page.goto(f"{installation.url}/console/{ids['Tests']}/playground?model={model}")


def part(page: Page, name: str, column: int = 0) -> Locator:
    """Return a part of one of the playground's answers."""
    return page.locator(f"[data-part={name}]").nth(column)


ECHO = """
[[models]]
id = "sandbox-echo"
context_window = 8192
max_output_tokens = 1024
price = { input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2" }
deployments = [{ name = "sandbox", engine = "sandbox" }]
"""
RECORDED = """
[[models]]
id = "recorded"
context_window = 8192
max_output_tokens = 1024
price = { input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2" }
deployments = [
    { name = "upstream", engine = "openai_compatible", base_url = "URL/v1", extra_parameters = ["top_k"] },
]
"""


def serve(installation: Installation, model: str, catalog: str) -> str:
    installation.load_catalog(catalog)
    return model


@pytest.fixture
def echo(installation: Installation) -> str:
    """Serve a model that repeats the last message."""
    return serve(installation, "sandbox-echo", ECHO)


@pytest.fixture
def recorded(installation: Installation) -> str:
    """Serve a model whose upstream records what it is asked."""
    installation.script("recorded", tokens=5)
    return serve(installation, "recorded", RECORDED.replace("URL", installation.upstream_url))


@pytest.mark.parametrize(
    ("protocol", "dialect", "end"),
    [
        ("chat", "openai", "data: [DONE]"),
        ("chat", "bitseek", '"finish_reason":"stop"'),
        ("chat", "opentoken", "data: [DONE]"),
        ("responses", "", "event: response.completed"),
        ("messages", "", "event: message_stop"),
        ("completions", "llama", "data: [DONE]"),
    ],
)
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
    answer, frames = (part(page, name).bounding_box() for name in ("answer", "frames"))
    assert answer is not None
    assert frames is not None
    assert (answer["x"] + answer["width"] < frames["x"], answer["y"]) == (True, frames["y"])
    amount = part(page, "amount").inner_text()
    page.get_by_role("link", name="Receipt").click()
    expect(page.locator(".sum")).to_contain_text(amount)
    expect(page.get_by_text("playground (ck_live_")).to_be_visible()


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_the_playground_shows_what_a_model_thinks_and_the_cost_of_it(
    page: Page, installation: Installation, ids: dict[str, int], protocol: str
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Protocol").select_option(protocol)
    page.get_by_label("Text of the message").fill("hello [sandbox reasoning_tokens=40 tokens=3 delay_ms=50]")
    part(page, "amount").evaluate(RECORDS_AMOUNTS)
    page.get_by_role("button", name="Send").click()
    expect(part(page, "amount")).to_contain_text("≥ $0.0000", timeout=15_000)
    expect(part(page, "thoughts")).not_to_be_empty()
    expect(part(page, "answer")).to_be_empty()
    expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)
    expect(part(page, "answer")).not_to_be_empty()
    amounts = [Decimal(each.lstrip("≥ $")) for each in page.evaluate("window.amounts") if each]
    assert amounts == sorted(amounts)
    assert len(set(amounts)) > 3, "it grows during the stream, and the last one is the receipt's"
    page.get_by_label("Text of the message").fill("hello [sandbox tokens=3]")
    page.get_by_role("button", name="Send").click()
    expect(part(page, "thoughts")).to_be_hidden()


@pytest.mark.parametrize(
    ("protocol", "marker"),
    [("chat", "reasoning_tokens=4 tokens=5"), ("chat", "tool_calls=1"), ("completions", "tokens=5")],
)
def test_of_several_choices_the_first_is_shown(
    page: Page, installation: Installation, ids: dict[str, int], protocol: str, marker: str
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Protocol").select_option(protocol)
    page.get_by_label("Text of the message").fill(f"hello [sandbox {marker}]")
    page.get_by_text("Parameters", exact=True).click()
    shown = []
    for count in (1, 2):
        page.get_by_label("other parameters").fill(json.dumps({"n": count}))
        page.get_by_role("button", name="Send").click()
        expect(part(page, "frames")).to_contain_text(f'"index":{count - 1}', timeout=15_000)
        expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)
        shown.append([part(page, name).text_content() for name in ("thoughts", "answer")])
    assert shown[0] == shown[1]


def test_an_answer_that_fails_on_its_way_is_not_complete(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Text of the message").fill("hello [sandbox error=server_error after=5]")
    page.get_by_role("button", name="Send").click()
    expect(part(page, "ended")).to_contain_text("failed", timeout=15_000)
    expect(part(page, "answer")).not_to_be_empty()
    expect(part(page, "failure")).to_be_visible()
    expect(page.get_by_role("button", name="Continue the conversation")).to_be_hidden()
    expect(page.locator("[data-announces]")).not_to_have_text("The answer is complete.")


def test_the_playground_stops_two_models_at_once(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    another = serve(installation, "another", ECHO.replace("sandbox-echo", "another"))
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Second model").select_option(another)
    page.get_by_label("Text of the message").fill("hello [sandbox tokens=900 delay_ms=50]")
    page.get_by_role("button", name="Send").click()
    for column in (0, 1):
        expect(part(page, "amount", column)).to_contain_text("≥ $0.0000", timeout=15_000)
    assert [part(page, "model", column).inner_text() for column in (0, 1)] == ["sandbox", another]
    left, right = (part(page, "amount", column).bounding_box() for column in (0, 1))
    assert left is not None
    assert right is not None
    assert left["x"] < right["x"]
    page.get_by_role("button", name="Stop").click()
    for column in (0, 1):
        expect(part(page, "ended", column)).to_contain_text("client cancelled", timeout=15_000)
    expect(page.get_by_role("button", name="Send")).to_be_focused()


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_the_playground_sends_tools_and_schemas_and_names_the_field_that_is_wrong(
    page: Page, installation: Installation, ids: dict[str, int], protocol: str
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


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_the_results_of_tools_continue_the_conversation(
    page: Page, installation: Installation, ids: dict[str, int], recorded: str, protocol: str
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Protocol").select_option(protocol)
    page.get_by_label("Text of the message").fill("Rain? [sandbox tool_calls=2]")
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("tools").fill(TOOLS)
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Continue the conversation").click()
    results = page.get_by_label("Result of weather")
    expect(results.first).to_be_focused()
    shown = [json.loads(each) for each in page.locator("[data-call] code").all_inner_texts()]
    results.first.fill("none")
    results.last.fill("some")
    page.get_by_label("Model", exact=True).select_option(recorded)
    page.get_by_role("button", name="Send").click()
    expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)
    _, assistant, *results_sent = installation.calls(recorded)[-1]["body"]["messages"]
    calls = assistant["tool_calls"]
    assert [each["function"]["name"] for each in calls] == ["weather", "weather"]
    assert [json.loads(each["function"]["arguments"]) for each in calls] == shown
    assert not assistant.get("content")
    sent = [(each["role"], each["tool_call_id"], each["content"]) for each in results_sent]
    assert sent == [("tool", calls[0]["id"], "none"), ("tool", calls[1]["id"], "some")]


@pytest.mark.parametrize(
    ("protocol", "dialect"),
    [
        *[("chat", dialect) for dialect in ("openai", "bitseek", "opentoken", "llama")],
        *[("completions", dialect) for dialect in ("openai", "bitseek")],
        ("responses", ""),
        ("messages", ""),
    ],
)
def test_the_playgrounds_code_sends_the_same_request(
    page: Page, installation: Installation, ids: dict[str, int], echo: str, protocol: str, dialect: str
) -> None:
    """Quotes, line breaks and backslashes come back as typed."""
    open_playground(page, installation, ids, echo)
    page.get_by_label("Protocol").select_option(protocol)
    if dialect:
        page.get_by_label("Dialect").select_option(dialect)
    prompt = 'it\'s "quoted" \\ and\nin $two `lines` {é}'
    page.get_by_label("Text of the message").fill(prompt)
    page.get_by_text("Parameters", exact=True).click()
    page.get_by_label("temperature").fill("0.25")
    expect(page.locator("#python")).to_contain_text("0.25")
    for language, output in outputs_of_code(page, installation, protocol).items():
        said = output if language != "curl" else _said(output)
        assert prompt in said
        assert "_tokens" in output


def outputs_of_code(page: Page, installation: Installation, protocol: str) -> dict[str, str]:
    """Run the page's code in each language; return what it prints."""
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
    outputs = {}
    for language, command in commands.items():
        folder = programs.node_packages(package) if language == "node" else None
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs[language] = done.stdout
    return outputs


PARAMETERS = {"temperature": "0.25", "top_p": "0.5", "max_tokens": "17", "seed": "3"}
OTHERS = {
    "chat": '{"top_k": 5, "tool_choice": "required"}',
    "responses": '{"top_k": 5, "tool_choice": "required"}',
    "messages": '{"top_k": 5, "tool_choice": {"type": "any"}}',
}
SENT: dict[str, Any] = {"temperature": 0.25, "top_p": 0.5, "top_k": 5, "tool_choice": "required"}
OF_PROTOCOL: dict[str, dict[str, Any]] = {
    "chat": {"seed": 3, "stop": ["END", "STOP"]},
    "responses": {},
    "messages": {"stop": ["END", "STOP"]},
}


@pytest.mark.parametrize("protocol", list(OF_PROTOCOL))
def test_page_and_code_send_the_whole_conversation_with_all_parameters(
    page: Page, installation: Installation, ids: dict[str, int], recorded: str, protocol: str
) -> None:
    """The upstream's requests are compared, byte for byte of their JSON."""
    open_playground(page, installation, ids, recorded)
    page.get_by_label("Protocol").select_option(protocol)
    fill_conversation(page)
    page.get_by_text("Parameters", exact=True).click()
    for name, value in PARAMETERS.items():
        if page.locator(f"#{name}").is_visible():
            page.locator(f"#{name}").fill(value)
    if page.locator("#stop_sequences").is_visible():
        page.locator("#stop_sequences").fill("END\nSTOP")
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("tools").fill(TOOLS)
    page.get_by_text("JSON schema", exact=True).click()
    page.get_by_label("schema of the answer").fill(SCHEMA)
    for wrong, why in (("5", "write an object"), ('{"model": "x"}', 'the form sends "model" already')):
        page.get_by_label("other parameters").fill(wrong)
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#invalid")).to_contain_text(f"other parameters: {why}")
    page.get_by_label("other parameters").fill(OTHERS[protocol])
    expect(page.locator("#curl")).to_contain_text("top_k")
    expect(page.locator("#curl")).to_contain_text("additionalProperties")
    page.get_by_role("button", name="Send").click()
    expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)
    (body,) = bodies = [each["body"] for each in installation.calls(recorded)][-1:]
    assert [(each["role"], each["content"]) for each in body["messages"]] == [
        ("system", "Be brief."),
        ("user", "One?"),
        ("assistant", "Two."),
        ("user", "Three?"),
    ]
    wanted = SENT | OF_PROTOCOL[protocol]
    assert {name: body.get(name) for name in wanted} == wanted
    assert 17 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert body["tools"][0]["function"]["name"] == "weather"
    assert body["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA)
    outputs_of_code(page, installation, protocol)
    bodies += [each["body"] for each in installation.calls(recorded)][-3:]
    assert bodies == [body] * 4


def fill_conversation(page: Page) -> None:
    """Write a system prompt and three messages, and remove a fourth."""
    page.get_by_label("System prompt").fill("Be brief.")
    for _ in range(3):
        page.get_by_role("button", name="Add a message").click()
    texts, roles = page.get_by_label("Text of the message"), page.get_by_label("Role of the message")
    for place, text in enumerate(("One?", "Two.", "Never?", "Three?")):
        texts.nth(place).fill(text)
    roles.nth(1).select_option("assistant")
    page.get_by_role("button", name="Remove").nth(2).click()
    expect(texts).to_have_count(3)


OTHER_PROJECT = """
from accounts.keys import get_or_create_project
print(get_or_create_project("Tests", "elsewhere").pk)
"""


@pytest.fixture
def other_project(installation: Installation) -> None:
    """Make the project "elsewhere" beside the others of the tests' organization."""
    installation.shell(OTHER_PROJECT)


@pytest.mark.usefixtures("other_project")
def test_the_project_that_is_chosen_is_charged(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Project").select_option("elsewhere")
    page.get_by_label("Text of the message").fill("hello [sandbox tokens=12]")
    page.get_by_role("button", name="Send").click()
    expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)
    amount = part(page, "amount").inner_text()
    page.goto(f"{installation.url}/console/{ids['Tests']}/overview?group=project")
    row = page.get_by_role("row", name="elsewhere")
    expect(row.locator(f"[title='{amount}']")).to_be_visible()


@pytest.mark.usefixtures("other_project")
def test_a_project_that_is_chosen_during_a_request_is_of_the_next_one(
    page: Page, installation: Installation, ids: dict[str, int]
) -> None:
    open_playground(page, installation, ids, "sandbox")
    page.get_by_label("Text of the message").fill("hello [sandbox tokens=60 delay_ms=50]")
    page.get_by_role("button", name="Send").click()
    expect(part(page, "amount")).to_contain_text("≥ $0.0000", timeout=15_000)
    page.get_by_label("Project").select_option("elsewhere")
    expect(part(page, "ended")).to_contain_text("completed", timeout=15_000)


def _said(stream: str) -> str:
    """Return the text of a stream's events, in any protocol."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    choices = [each["choices"][0] for each in events if each.get("choices")]
    deltas = [each.get("delta", each) for each in choices]
    deltas += [each["delta"] for each in events if each.get("type") == "content_block_delta"]
    pieces = [each.get("content") or each.get("text") or "" for each in deltas]
    pieces += [each["delta"] for each in events if each.get("type") == "response.output_text.delta"]
    return "".join(pieces)
