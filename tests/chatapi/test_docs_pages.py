"""The guides and the reference at /docs."""

import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from django.test import Client

from chatapi.delta_stream import jobs
from chatapi.docs import guides
from chatapi.docs.markdown import MARKDOWN
from chatapi.wire.deltas import Failed

HREF = re.compile(r'href="([^"#]*)(?:#([^"]+))?"')
MAX_BYTES = 150_000


def page(path: str, **headers: str) -> str:
    response = Client().get(path, headers=headers)
    assert response.status_code == 200, path
    assert len(response.content) < MAX_BYTES, path
    return response.content.decode()


@pytest.fixture(scope="module")
def openapi() -> dict[str, Any]:
    document: dict[str, Any] = Client().get("/openapi.json").json()
    return document


def test_each_guide_is_in_the_menu_and_links_only_to_places_that_exist() -> None:
    slugs = guides.menu()
    assert len(slugs) >= 14, "every guide is installed here"
    pages = {f"/docs/{slug}": page(f"/docs/{slug}") for slug in slugs}
    for path, html in pages.items():
        for href, fragment in HREF.findall(html):
            if href.startswith(("http", "/static", "/console")):
                continue
            target = urljoin(path, href) if href else path
            found = pages.get(target) or page(target)
            assert not fragment or f'id="{fragment}"' in found, (path, href, fragment)


def test_a_guide_links_to_the_reference() -> None:
    assert 'href="reference/createChatCompletion"' in page("/docs/chat")


@pytest.mark.parametrize("end", [jobs.CANCELLED, jobs.WORKER_LOST, jobs.NOT_STARTED])
def test_the_table_of_errors_has_the_status_of_an_end_without_a_worker(end: Failed) -> None:
    rows = [row for row in Path("docs/errors.md").read_text().splitlines() if f"`{end.code}`" in row]
    assert rows[0].startswith(f"| {end.status} |")


def test_no_guide_names_a_file_of_the_repository_that_its_readers_do_not_have() -> None:
    for slug in guides.menu():
        words = re.sub(
            "<[^>]+>", " ", re.sub(r"<code>.*?</code>", " ", page(f"/docs/{slug}"), flags=re.DOTALL)
        )
        assert re.findall(r"\S+\.md\b", words) == [], slug


def test_a_cell_names_its_column_for_a_phone_and_fills_the_line_without_a_name() -> None:
    html = MARKDOWN.render("| | top-up |\n|---|---|\n| who pays | people |\n")
    assert '<td class="full">who pays</td>' in html
    assert '<td data-label="top-up">people</td>' in html


def test_the_keyboard_can_scroll_each_example_of_each_guide() -> None:
    examples = {slug: re.findall("<pre[^>]*>", page(f"/docs/{slug}")) for slug in guides.menu()}
    assert sum(map(len, examples.values())) > 40
    unreachable = {
        slug: [tag for tag in tags if 'tabindex="0"' not in tag] for slug, tags in examples.items()
    }
    assert {slug: tags for slug, tags in unreachable.items() if tags} == {}


def test_examples_have_the_readers_base_url() -> None:
    html = page("/docs/quickstart", host="127.0.0.1:9000")
    assert "http://127.0.0.1:9000/openai/v1/chat/completions" in html
    for slug in guides.menu():
        assert "127.0.0.1:8000" not in page(f"/docs/{slug}", host="127.0.0.1:9000"), slug
    assert (
        "https://localhost/openai/v1"
        in Client().get("/docs", secure=True, headers={"host": "localhost"}).text
    )


def test_the_index_describes_each_guide_by_its_first_sentence() -> None:
    shown = page("/docs")
    assert len(re.findall(r'<span class="line faint">[^<]', shown)) + shown.count('faint"><code>') == 20
    for description in (
        "Each model has prices per million tokens, in US dollars.",
        "A statement says what an organization owes for a month.",
        "chatapi can let organizations pay by Stripe.",
        "A key begins with <code>ck_live_</code> or <code>ck_test_</code>.",
        "An error has its HTTP status and OpenAI&#x27;s envelope.",
    ):
        assert f'<span class="line faint">{description}</span>'.replace("&#x27;", "'") in shown


def test_a_copied_example_is_the_command_without_prompt_and_output() -> None:
    copied = re.search(r'<span id="example-[^"]+">(.*?)</span>', page("/docs/errors"), re.DOTALL)
    assert copied is not None
    assert copied[1].startswith("curl -s ")
    assert "rate limited" not in copied[1]


@pytest.mark.parametrize("path", ["/docs/messages", "/docs/messages.md"])
def test_the_part_for_operators_is_left_out(path: str) -> None:
    text = page(path)
    assert "Claude Code" in text
    assert "For operators" not in text
    assert "Anthropic as the upstream" not in text


def test_the_reference_has_every_operation_and_type(openapi: dict[str, Any]) -> None:
    index = page("/docs/reference")
    for path, item in openapi["paths"].items():
        for method, operation in item.items():
            assert f'href="/docs/reference/{operation["operationId"]}"' in index
            html = page(f"/docs/reference/{operation['operationId']}")
            assert method.upper() in html
            assert path in html
            assert all(f">{status}<" in html for status in operation["responses"])
    for name, schema in openapi["components"]["schemas"].items():
        html = page(f"/docs/reference/schemas/{name}")
        assert all(f"<code>{member}</code>" in html for member in schema.get("properties", {}))
        linked = set(re.findall(r'href="/docs/reference/schemas/(\w+)"', html))
        assert linked <= set(openapi["components"]["schemas"])


def test_a_page_of_the_reference_takes_less_than_a_second(openapi: dict[str, Any]) -> None:
    """Of the process, so that a busy machine changes nothing."""
    operations = [each["operationId"] for ways in openapi["paths"].values() for each in ways.values()]
    paths = [f"/docs/reference/{name}" for name in operations if name in page("/docs/reference")]
    assert len(paths) >= 20
    for path in ["/docs/reference", *paths]:
        start_s = time.process_time()
        page(path)
        assert time.process_time() - start_s < 1, path


def test_types_are_in_words() -> None:
    html = re.sub(r"<[^>]+>", "", page("/docs/reference/schemas/ChatRequest"))
    assert "integer (1 to 128) or null" in html
    assert "number (0 to 2) or null" in html
    assert re.search(r"array of DeveloperMessage or .* or FunctionMessage \(1 to 2,048 items\)", html)


@pytest.mark.parametrize(
    "path",
    [
        "/docs/nothing",
        "/docs/architecture",
        "/docs/nothing.md",
        "/docs/reference/x",
        "/docs/reference/schemas/x",
    ],
)
def test_what_there_is_not_is_a_404(path: str) -> None:
    assert Client().get(path).status_code == 404


def test_a_slash_at_the_end_leads_to_the_page() -> None:
    for path in ("/docs", "/docs/errors"):
        assert Client().get(f"{path}/")["location"] == path


def test_a_page_loads_only_files_of_this_server() -> None:
    policy = Client().get("/docs/errors").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
