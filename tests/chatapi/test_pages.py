"""The OpenAPI document and the pages for people."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pytest_django.fixtures import Settings

from chatapi.urls import client_routes
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text


@pytest.mark.parametrize("host", ["web:8000", "10.1.2.3:8000", "evil.example"])
@pytest.mark.parametrize("path", ["/metrics", "/openapi.json", "/docs", "/docs/sandbox.md"])
def test_what_has_no_session_answers_under_any_host(
    transactional_db: None, settings: Settings, path: str, host: str
) -> None:
    settings.METRICS_TOKEN = "0123456789abcdef"
    headers = {"authorization": "Bearer 0123456789abcdef"}
    response, usual = (
        Client().get(path, headers=headers | {"host": host}),
        Client().get(path, headers=headers),
    )
    assert response.status_code == usual.status_code != 400
    assert host not in response.text


# ---- the OpenAPI document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Return the content of /openapi.json."""
    found: dict[str, Any] = Client().get("/openapi.json").json()
    return found


def references(part: Any) -> Iterator[str]:
    """Yield all `$ref`s in that part of the document."""
    match part:
        case {"$ref": str(name)}:
            yield name
        case dict():
            for inner in part.values():
                yield from references(inner)
        case list():
            for inner in part:
                yield from references(inner)


def test_every_route_is_documented_once(document: dict[str, Any]) -> None:
    reading = {
        "/v1/" + re.sub("<(?:path|str):([a-z_]+)>", r"{\1}", str(route.pattern)) for route in client_routes
    }
    assert reading <= set(document["paths"])
    assert "post" in document["paths"]["/v1/chat/completions"]
    assert not any(path.startswith(f"/{dialect}/") for path in document["paths"] for dialect in DIALECTS)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert found
    assert found <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def test_every_operation_tells_what_it_answers_and_which_errors_it_knows(document: dict[str, Any]) -> None:
    for path in document["paths"].values():
        for operation in path.values():
            is_by_ticket = operation["operationId"] == "streamTicket"
            assert operation["security"] == ([] if is_by_ticket else [{"APIKey": []}, {"APIKeyHeader": []}])
            overloaded = "529" if operation["tags"] == ["messages"] else "503"
            assert {"400", "401", "429", "500", overloaded} <= set(operation["responses"])
            assert {"200", "201"} & set(operation["responses"])
            assert all(response["description"] for response in operation["responses"].values())


def test_what_clients_send_has_no_fields_of_ours(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert {"messages", "model", "stream", "tools"} <= set(schemas["ChatRequest"]["properties"])
    assert {"prompt", "model", "stream", "echo"} <= set(schemas["TextRequest"]["properties"])
    for name in ("ChatRequest", "TextRequest"):
        assert not {"extras", "ignored", "request"} & {
            *schemas[name]["properties"],
            *schemas[name]["required"],
        }


HELLO = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("schema", "members", "is_valid"),
    [
        ("ChatRequest", {"messages": [HELLO]}, True),
        ("ChatRequest", {"messages": []}, False),
        ("ChatRequest", {"messages": [HELLO], "top_logprobs": 5}, False),
        ("ChatRequest", {"messages": [HELLO], "top_logprobs": 5, "logprobs": True}, True),
        ("ChatRequest", {"messages": [HELLO], "tool_choice": "required"}, False),
        ("ChatRequest", {"messages": [HELLO], "tool_choice": "required", "tools": [TOOL]}, True),
        ("ChatRequest", {"messages": [HELLO], "tool_choice": "none"}, True),
        ("ChatRequest", {"messages": [HELLO], "modalities": ["audio"]}, False),
        ("ChatRequest", {"messages": [{"role": "assistant"}]}, False),
        ("ChatRequest", {"messages": [{"role": "assistant", "refusal": "no"}]}, True),
        ("TextRequest", {"prompt": ["a", "b"]}, True),
        ("TextRequest", {"prompt": ["a", 5]}, False),
        ("TextRequest", {"prompt": [[5]], "logprobs": True}, True),
    ],
)
def test_it_says_which_requests_are_valid(
    document: dict[str, Any], schema: str, members: dict[str, Any], is_valid: bool
) -> None:
    """The document agrees with the server, also about combinations of parameters."""
    body = {"model": "sandbox", **members}
    validator = Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    )
    assert validator.is_valid(body) is is_valid
    parse: Callable[[bytes], Any] = parse_chat if schema == "ChatRequest" else parse_text
    with contextlib.nullcontext() if is_valid else pytest.raises(InvalidRequest):
        parse(json.dumps(body).encode())


def test_its_patterns_are_ecmascripts(document: dict[str, Any]) -> None:
    assert r"\\Z" not in json.dumps(document)


# ---- pages


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/errors", "/docs/reference", "/docs/sandbox.md"])
def test_a_page_needs_no_key_and_nothing_from_elsewhere(path: str) -> None:
    response = Client().get(path)
    assert response.status_code == 200
    if not path.endswith(".md"):
        assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", response.content.decode())


def test_the_front_page_shows_its_own_address() -> None:
    assert (
        b"https://localhost/v1/chat/completions"
        in Client().get("/", secure=True, headers={"host": "localhost"}).content
    )


def test_the_front_page_leads_to_the_sandboxs_guide_with_the_readers_address() -> None:
    client, own = Client(), {"host": "localhost:9443"}
    front = client.get("/", secure=True, headers=own).content.decode()
    (path,) = re.findall(r'<a href="([^"]+)">Sandbox</a>', front)
    answer = client.get(path, secure=True, headers=own)
    guide = answer.content.decode()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.search(r"<h1[^>]*>The sandbox</h1>", guide)
    assert "https://localhost:9443/v1/chat/completions" in guide
    assert "127.0.0.1" not in guide
    assert not re.search(r"^(#|```|\|)", guide, re.MULTILINE)


def test_the_files_of_the_pages_are_served() -> None:
    pages = Client().get("/").content.decode() + Client().get("/docs").content.decode()
    paths = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', pages))
    assert len(paths) >= 4
    for path in paths:
        with contextlib.closing(Client().get(path)) as response:
            assert response.status_code == 200, path


def test_a_page_that_there_is_not_is_a_small_page() -> None:
    response = Client().get("/<script>")
    assert (response.status_code, response.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b"<script>" not in response.content


@pytest.mark.parametrize(
    ("path", "home"),
    [
        ("/console/sign-out", "/console/"),
        ("/admin/live/stop-key", "/admin/"),
        ("/console/1/live/stop-key", "/console/"),
    ],
)
def test_the_address_of_a_form_that_is_opened_is_a_page_that_leads_back(
    root: Client, path: str, home: str
) -> None:
    response = root.get(path)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "This URL takes a form." in response.content.decode()
    assert f'href="{home}"' in response.content.decode()
    assert "content-security-policy" in response.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize(
    "path", ["/", "/docs", "/docs/errors", "/docs/reference", "/docs/sandbox.md", "/openapi.json", "/metrics"]
)
def test_a_read_only_route_says_so_to_every_other_method(
    path: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = Client(enforce_csrf_checks=True).generic(method, path)
    assert (response.status_code, response.headers["allow"], response.content) == (405, "GET, HEAD", b"")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
