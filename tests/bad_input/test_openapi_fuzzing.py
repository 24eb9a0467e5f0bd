"""Schemathesis reads our OpenAPI document and sends valid and invalid requests: no answer may contradict the
document.
"""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(400)]

SEED = "1"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "ignored_auth,unsupported_method"
)
# By the name of a body's schema.
MODELS = {
    "ChatRequest": "sandbox",
    "TextRequest": "sandbox",
    "MessagesRequest": "sandbox",
    "CountTokensRequest": "sandbox",
    "ResponsesRequest": "sandbox",
    "EmbeddingsRequest": "sandbox-embedding",
}
MANAGEMENT = "management"
PHASES: dict[str, list[str]] = {
    "what it makes up": ["--phases", "examples,fuzzing", "--max-examples", "15"],
    # The bodies of tickets are those of chat completions, those to count are those of the others.
    "every bound of every parameter": [
        "--phases",
        "coverage",
        "--exclude-path",
        "/v1/chat/completions/tickets",
        "--exclude-path",
        "/v1/messages/count_tokens",
        "--exclude-path",
        "/v1/responses/input_tokens",
    ],
}


@pytest.fixture(scope="module")
def document(installation: Installation) -> dict[str, Any]:
    """Return the document, narrowed to what exists: all other models, generations and responses would be
    a 404.
    """
    client = Client(installation.url, installation.keys["test"])
    document: dict[str, Any] = client.send("GET", "/openapi.json").json
    for name, model in MODELS.items():
        document["components"]["schemas"][name]["properties"]["model"] = {"const": model}
    body = json.dumps({"model": "sandbox", "input": "hi", "background": True}).encode()
    response_id, deleted_id = (client.send("POST", "/v1/responses", body).json["id"] for _ in range(2))
    generation_id = client.complete("sandbox").headers["x-generation-id"]
    existing = {"generation_id": generation_id, "response_id": response_id}
    wait_for(lambda: _has_ended(client, response_id), "the response to continue")
    # Most would name no response; the rest of the request would not be looked at.
    previous = document["components"]["schemas"]["ResponsesRequest"]["properties"]["previous_response_id"]
    previous |= {"anyOf": [{"const": response_id}, {"type": "null"}]}
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        is_deletion = operation["operationId"] == "deleteResponse"
        # It ties requests together: a second body with the key of the first is a 422, with any content.
        operation["parameters"] = [
            each for each in operation.get("parameters", []) if each["name"] != "Idempotency-Key"
        ]
        for parameter in operation["parameters"]:
            if parameter["name"] in existing:
                name = deleted_id if is_deletion else existing[parameter["name"]]
                parameter["schema"] = {"const": name}
    return document


def _has_ended(client: Client, response_id: str) -> bool:
    status: str = client.send("GET", f"/v1/responses/{response_id}").json["status"]
    return status == "completed"


@pytest.fixture(scope="module")
def admin_key(installation: Installation) -> str:
    """A key that owns an organization of its own, which the tests may turn upside down."""
    return installation.create_key("--organization", "Fuzzed", "--project", "home", "--manages-as", "owner")


@pytest.fixture(scope="module")
def management(installation: Installation, document: dict[str, Any], admin_key: str) -> dict[str, Any]:
    """The management API of the document, narrowed to a project that there is, except for its archiving."""
    body = json.dumps({"name": "fuzzed"}).encode()
    project = Client(installation.url, admin_key).send("POST", "/v1/organization/projects", body).json
    paths = {
        path: operations
        for path, operations in document["paths"].items()
        if any(MANAGEMENT in operation["tags"] for operation in operations.values())
    }
    narrowed: dict[str, Any] = copy.deepcopy(document | {"paths": paths})
    for path, operations in narrowed["paths"].items():
        parameters = [each for operation in operations.values() for each in operation["parameters"]]
        for parameter in parameters:
            if parameter["name"] == "project_id" and not path.endswith("/archive"):
                parameter["schema"] = {"const": project["id"]}
            if parameter["name"] == "rate_limit_id":
                parameter["schema"] = {"enum": ["rl-*", "rl-sandbox"]}
    return narrowed


@pytest.mark.parametrize("phase", PHASES)
def test_schemathesis_finds_no_server_error_and_nothing_undocumented(
    installation: Installation, document: dict[str, Any], tmp_path: Path, phase: str
) -> None:
    options = [*PHASES[phase], "--exclude-tag", MANAGEMENT]
    fuzz(installation.url, document, installation.keys["test"], tmp_path, options)


@pytest.mark.parametrize("phase", ["examples,fuzzing", "coverage"])
def test_schemathesis_finds_nothing_undocumented_in_the_management_api(
    installation: Installation, management: dict[str, Any], admin_key: str, tmp_path: Path, phase: str
) -> None:
    fuzz(installation.url, management, admin_key, tmp_path, ["--phases", phase, "--max-examples", "10"])


def fuzz(url: str, document: dict[str, Any], key: str, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        "openapi.json",
        "--url",
        url,
        "--seed",
        SEED,
        "--no-color",
    ]
    command += [
        "--header",
        f"Authorization: Bearer {key}",
        "--checks",
        CHECKS,
        *options,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Test cases:" in done.stdout
