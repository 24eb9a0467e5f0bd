"""A deployment that can't answer costs its request nothing but time: the next one is asked, or the same one
again, and the operator sees each attempt.
"""

import json
import time
from typing import Any

import pytest

from chatapi.models import USUAL_RETRIES
from tests.chatapi.http_client import Client
from tests.chatapi.open_generations import OpenGenerations
from tests.installation import Installation, free_port, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MODEL = """
[[models]]
id = "{name}"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2" }}
deployments = [
    {{ name = "gone", engine = "openai_compatible", upstream_model = "{name}", priority = 0, \
base_url = "{first_url}/v1" }},
    {{ name = "there", engine = "openai_compatible", upstream_model = "five", priority = 1, \
base_url = "{upstream_url}/v1" }},
]
"""
ONLY = """
[[models]]
id = "{name}"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "1", output_per_mtok = "2" }}
deployments = [{{ name = "only", engine = "openai_compatible", base_url = "{upstream_url}/v1" }}]
"""
READ = """
import json
from usage.models import Generation
row = Generation.objects.get(pk="ID")
print(json.dumps([row.deployment, row.attempts, row.attempt_log]))
"""


def test_the_next_deployment_is_asked_and_both_are_on_the_receipt(
    installation: Installation, client: Client
) -> None:
    serve_two(installation, "fails-over", f"http://127.0.0.1:{free_port()}")
    answer = client.complete("fails-over")
    assert answer.status == 200
    installation.receipt(answer.json["id"])
    deployment, attempts, log = read_row(installation, answer.json["id"])
    assert (deployment, attempts) == ("there", 2)
    assert [(each["deployment"], each["error_code"]) for each in log] == [
        ("gone", "upstream_unreachable"),
        ("there", ""),
    ]
    assert all(0 <= each["duration_ms"] < 60_000 for each in log)
    generation = answer.json["id"].removeprefix("chatcmpl-")
    line = f"{generation}: deployment gone of fails-over failed: upstream_unreachable (Connection refused)"
    assert line in installation.log("worker")


def test_a_model_that_an_upstream_has_retired_is_asked_elsewhere(
    installation: Installation, client: Client
) -> None:
    words = {"error_type": "not_found_error", "error_message": "model: claude-2.1"}
    installation.script("retired", status=404, **words)
    serve_two(installation, "retired", installation.upstream_url)
    answer = client.complete("retired")
    assert answer.status == 200
    deployment, _, log = read_row(installation, answer.json["id"])
    assert (deployment, log[0]["error_code"]) == ("there", "upstream_model_not_found")


@pytest.mark.parametrize("stream", [True, False])
def test_a_bad_moment_of_the_only_deployment_is_not_the_clients(
    installation: Installation, client: Client, stream: bool
) -> None:
    name = serve(installation, f"recovers-{stream}", status=502, fail_first=2)
    with client.asking(name, stream=stream) as exchange:
        assert exchange.read().status == 200
        generation_id = exchange.response.headers["x-generation-id"]
    receipt = installation.receipt(generation_id)
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("completed", 5)
    calls = installation.calls(name)
    assert [call["tokens"] for call in calls] == [0, 0, 5]
    deployment, attempts, log = read_row(installation, generation_id)
    assert (deployment, attempts) == ("only", 3)
    assert [each["error_code"] for each in log] == ["upstream_error", "upstream_error", ""]
    ends = [each["started_ms"] + each["duration_ms"] for each in log]
    assert all(end <= after["started_ms"] for end, after in zip(ends, log[1:], strict=False))


def test_retry_after_is_waited_for(installation: Installation, client: Client) -> None:
    name = serve(installation, "throttled", status=429, fail_first=1, retry_after="1")
    assert client.complete(name).status == 200
    first, second = installation.calls(name)
    assert second["opened_at"] - first["closed_at"] >= 0.99


def test_a_client_that_leaves_ends_the_retries(
    installation: Installation, client: Client, open_generations: OpenGenerations
) -> None:
    name = serve(installation, "left-while-throttled", status=429, retry_after="2")
    with client.asking(name, stream=True) as exchange:
        wait_for(lambda: len(open_generations.new()) == 1, "the request in the queue")
        generation_id = open_generations.new()[0]
        wait_for(lambda: bool(installation.calls(name)), "the first attempt")
        left_at = exchange.leave()
    receipt = installation.receipt(generation_id)
    assert time.time() - left_at < 1.9, "the run ended during the wait"
    assert (receipt["outcome"], receipt["amount_nanodollars"]) == ("client_cancelled", 0)
    assert len(installation.calls(name)) == 1


def test_a_request_at_fault_is_asked_once(installation: Installation, client: Client) -> None:
    name = serve(installation, "refuses-it", status=400, error_message="temperature is too high")
    assert client.complete(name).status == 400
    assert len(installation.calls(name)) == 1


def test_an_upstream_that_stays_down_ends_in_its_error(installation: Installation, client: Client) -> None:
    name = serve(installation, "stays-down", status=500)
    answer = client.complete(name)
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert len(installation.calls(name)) == 1 + USUAL_RETRIES


def serve(installation: Installation, name: str, **script: Any) -> str:
    """Add a model with one deployment whose upstream follows the script; return its name."""
    installation.script(name, **script)
    installation.load_catalog(ONLY.format(name=name, upstream_url=installation.upstream_url))
    return name


def serve_two(installation: Installation, name: str, first_url: str) -> None:
    """Add a model with two deployments, of which the second answers."""
    values = {"name": name, "first_url": first_url, "upstream_url": installation.upstream_url}
    installation.load_catalog(MODEL.format(**values))


def read_row(installation: Installation, generation_id: str) -> Any:
    """Return the deployment and the attempts of the generation's row."""
    row_id = generation_id.removeprefix("chatcmpl-")
    return json.loads(installation.shell(READ.replace("ID", row_id)))
