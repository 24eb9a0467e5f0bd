"""A real browser: fetch with a ReadableStream, and EventSource with a ticket, from pages of the service's own
origin.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from chatapi.wire.protocols.chat import CHAT
from tests.chatapi.http_client import HELLO, Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("heavy clients"), pytest.mark.timeout(120)]

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
FOLDER = Path(__file__).parent
FETCH = (FOLDER / "browser" / "fetch.js").read_text()
EVENT_SOURCE = (FOLDER / "browser" / "event_source.js").read_text()
BITSEEK = (FOLDER / "documents" / "bitseek_eventsource.js").read_text()
BITSEEK_URL = "https://chat-proxy.bitseek.ai/v1/chat/completions"
TEXT = " the of and to in"
STREAMED = {"model": "five", "stream": True, "messages": HELLO}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Debian's Chromium; playwright's own download is not needed."""
    if CHROMIUM is None:
        pytest.fail("there is no Chromium: apt-get install chromium-headless-shell", pytrace=False)
    with sync_playwright() as playwright:
        # Without this, a page of another machine's URL may not ask this machine, even if it allows that.
        args = ["--no-sandbox", "--disable-gpu", "--disable-features=LocalNetworkAccessChecks"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, installation: Installation) -> Iterator[Page]:
    """Open an empty page of the service's origin."""
    page = browser.new_page()
    page.route(
        "**/page",
        lambda route: route.fulfill(content_type="text/html", body="<!doctype html><title>A page</title>"),
    )
    page.goto(f"{installation.url}/page")
    yield page
    page.close()


def ticket(http: Client, dialect: str, model: str, **parameters: Any) -> str:
    """Return the URL at which an EventSource gets this answer, once."""
    body = json.dumps({"model": model, "messages": HELLO, **parameters}).encode()
    answer = http.send("POST", f"/{dialect}/v1/chat/completions/tickets", body)
    assert answer.status == 201, answer.body
    url: str = answer.json["url"]
    return url


def listen(page: Page, url: str) -> dict[str, Any]:
    result: dict[str, Any] = page.evaluate(EVENT_SOURCE, url)
    return result


def said(messages: list[str]) -> str:
    chunks = [json.loads(message) for message in messages if message != "[DONE]"]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def wait_for_cut(installation: Installation) -> None:
    wait_for(
        lambda: bool(installation.calls("three-then-silence")[-1]["is_peer_gone"]), "the cut", timeout_s=5
    )


# ---- fetch


def fetch(
    page: Page, key: str, model: str, *, dialect: str = "openai", content: str = "hello", **options: Any
) -> dict[str, Any]:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": content}]}
    result: dict[str, Any] = page.evaluate(
        FETCH, {"path": f"/{dialect}/v1/chat/completions", "key": key, "body": body, **options}
    )
    return result


@pytest.mark.parametrize("dialect", CHAT.dialects)
def test_fetch_reads_a_stream_as_it_comes(page: Page, installation: Installation, dialect: str) -> None:
    result = fetch(
        page,
        installation.keys["live"],
        "sandbox",
        dialect=dialect,
        content="hello [sandbox tokens=6 delay_ms=50]",
    )
    assert (result["status"], result["type"]) == (200, "text/event-stream; charset=utf-8")
    assert (result["tokens"], result["failure"]) == (6, None)
    assert result["pieces"] >= 6


def test_fetch_works_under_the_services_own_content_security_policy(
    browser: Browser, installation: Installation
) -> None:
    page = browser.new_page()
    page.goto(f"{installation.url}/docs")
    assert fetch(page, installation.keys["live"], "five")["text"] == TEXT
    page.close()


@pytest.mark.parametrize(("host", "is_allowed"), [("localhost", True), ("[::1]", False)])
def test_pages_of_the_origins_that_are_allowed_may_ask(
    browser: Browser, installation: Installation, host: str, is_allowed: bool
) -> None:
    origin = f"http://{host}:{installation.port}"
    page = browser.new_page()
    page.route(
        f"{origin}/page",
        lambda route: route.fulfill(content_type="text/html", body="<!doctype html><title>A page</title>"),
    )
    page.goto(f"{origin}/page")
    asked = {
        "path": f"{installation.url}/openai/v1/chat/completions",
        "key": installation.keys["live"],
        "body": STREAMED,
    }
    if is_allowed:
        assert page.evaluate(FETCH, asked)["text"] == TEXT
    else:
        with pytest.raises(Error, match="Failed to fetch"):
            page.evaluate(FETCH, asked)
    page.close()


def test_fetch_reads_errors_before_and_inside_a_stream(page: Page, installation: Installation) -> None:
    result = fetch(page, "ck_live_wrong", "five")
    assert (result["status"], result["failure"]["code"]) == (401, "invalid_api_key")
    result = fetch(page, installation.keys["live"], "breaks-by-error")
    assert (result["status"], result["text"], result["failure"]["type"]) == (
        200,
        " the of and",
        "server_error",
    )


def test_a_fetch_that_is_aborted_cuts_the_upstream(page: Page, installation: Installation) -> None:
    result = fetch(page, installation.keys["live"], "three-then-silence", stopAfter=3)
    assert (result["tokens"], result["failure"]) == (3, {"name": "AbortError"})
    wait_for_cut(installation)


# ---- EventSource


def test_bitseeks_own_example_works_word_for_word(
    page: Page, http: Client, installation: Installation
) -> None:
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    process = "{ stdout: { write: (text) => written.push(text) } }"
    node = f"<script>const written = []; const process = {process};</script>"
    example = BITSEEK.replace(BITSEEK_URL, ticket(http, "bitseek", "five"))
    page.route(
        "**/example",
        lambda route: route.fulfill(content_type="text/html", body=f"{node}<script>{example}</script>"),
    )
    with page.expect_console_message(lambda message: message.text.startswith("Response complete:")):
        page.goto(f"{installation.url}/example")
    assert logged == [f"Response complete: {TEXT}"]
    assert page.evaluate("written.filter(Boolean)") == [" the", " of", " and", " to", " in"]
    assert page.evaluate("eventSource.readyState") == 2


@pytest.mark.parametrize("dialect", ["openai", "opentoken", "llama"])
def test_an_event_source_gets_all_events_up_to_done(page: Page, http: Client, dialect: str) -> None:
    result = listen(page, ticket(http, dialect, "five"))
    assert (said(result["messages"]), result["messages"][-1], result["opened"]) == (TEXT, "[DONE]", 1)


def test_an_event_source_that_comes_again_is_refused_and_gives_up(
    page: Page, http: Client, installation: Installation
) -> None:
    calls = len(installation.calls("five"))
    result = listen(page, ticket(http, "bitseek", "five"))
    assert (said(result["messages"]), result["opened"], result["isClosedByServer"]) == (TEXT, 1, True)
    assert len(installation.calls("five")) == calls + 1


def test_an_event_source_gets_the_error_event_of_the_llama_dialect(page: Page, http: Client) -> None:
    result = listen(page, ticket(http, "llama", "breaks-by-error"))
    (error,) = result["errors"]
    assert said(result["messages"]) == " the of and"
    assert json.loads(error).keys() >= {"message", "type"}


def test_closing_the_page_cuts_the_upstream(
    browser: Browser, http: Client, installation: Installation
) -> None:
    calls = len(installation.calls("three-then-silence"))
    leaving = browser.new_page()
    leaving.goto(f"{installation.url}/docs")
    leaving.evaluate(
        "(url) => { window.source = new EventSource(url); }", ticket(http, "openai", "three-then-silence")
    )
    wait_for(lambda: len(installation.calls("three-then-silence")) > calls, "the upstream's call")
    leaving.close()
    wait_for_cut(installation)
