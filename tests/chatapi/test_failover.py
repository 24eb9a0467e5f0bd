"""A deployment that can't answer costs its request nothing but time: the next one is asked, and the operator
sees both.
"""

import json
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation, free_port

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MODEL = """
[[models]]
id = "fails-over"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2" }}
deployments = [
    {{ name = "gone", engine = "openai_compatible", upstream_model = "five", priority = 0, \
base_url = "http://127.0.0.1:{port}/v1" }},
    {{ name = "there", engine = "openai_compatible", upstream_model = "five", priority = 1, \
base_url = "{upstream_url}/v1" }},
]
"""
READ = """
import json
from usage.models import Generation
row = Generation.objects.get(model="fails-over")
print(json.dumps([row.deployment, row.attempts, row.attempt_log]))
"""


def test_the_next_deployment_is_asked_and_both_are_on_the_receipt(
    installation: Installation, client: Client
) -> None:
    catalog = installation.folder / "fails-over.toml"
    catalog.write_text(MODEL.format(port=free_port(), upstream_url=installation.upstream_url))
    assert installation.manage("loadcatalog", str(catalog)).returncode == 0
    answer = client.complete("fails-over")
    assert answer.status == 200
    installation.receipt(answer.json["id"])
    deployment, attempts, log = read_row(installation)
    assert (deployment, attempts) == ("there", 2)
    assert [(each["deployment"], each["error_code"]) for each in log] == [
        ("gone", "upstream_unreachable"),
        ("there", ""),
    ]
    assert all(0 <= each["duration_ms"] < 60_000 for each in log)
    generation = answer.json["id"].removeprefix("chatcmpl-")
    assert f"{generation}: deployment gone of fails-over failed: upstream_unreachable" in installation.log(
        "worker"
    )


def read_row(installation: Installation) -> Any:
    """Return the row of the only request."""
    done = installation.manage("shell", "--no-imports", "-c", READ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
