"""The examples of docs/notifications.md: they verify a message of ours, and refuse one that was changed."""

import json
import re
import subprocess
from typing import Any

import pytest

from chatapi.notifications import webhooks
from chatapi.notifications.models import WebhookEndpoint
from tests.cast import Person
from tests.chatapi.notifications.conftest import endpoint_of, write_event
from tests.clients.programs import NODE
from tests.installation import ROOT
from usage.database.clock import database_now
from usage.models import OPERATORS_KINDS, TENANTS_KINDS

GUIDE = (ROOT / "docs" / "notifications.md").read_text()


def example(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def message(alice: Person) -> tuple[str, bytes, dict[str, str]]:
    endpoint, secret = endpoint_of(alice, "https://example.com")
    now = database_now()
    event = write_event(alice, now)
    body = webhooks.payload(event)
    return secret, body, webhooks.headers(event, body, webhooks._secrets(endpoint, now), now)


def test_the_python_example_verifies(
    message: tuple[str, bytes, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    secret, body, headers = message
    names: dict[str, Any] = {"secret": secret, "body": body, "headers": headers}
    exec(example("python"), names)
    assert capsys.readouterr().out.startswith("spend.unusual {")
    with pytest.raises(Exception, match="No matching signature"):
        exec(example("python"), names | {"body": body + b" "})


@pytest.mark.parametrize("change", ["", " "])
def test_the_node_example_verifies(message: tuple[str, bytes, dict[str, str]], change: str) -> None:
    secret, body, headers = message
    call = f"verify({json.dumps(secret)}, {json.dumps(body.decode() + change)}, {json.dumps(headers)})"
    program = example("javascript") + f"\nconsole.log({call}.type);"
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if change:
        assert "wrong signature" in done.stderr
    else:
        assert done.stdout == "spend.unusual\n", done.stderr


def test_the_guide_has_all_kinds_and_their_data(message: object) -> None:
    examples = [
        json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    ]
    assert {examples[0]["type"], *examples[1]} == {*TENANTS_KINDS, "webhook.test"}
    assert {*examples[2]} == {*OPERATORS_KINDS, "webhook.test"}
    assert all(f"`{kind}`" in GUIDE for kind in (*TENANTS_KINDS, *OPERATORS_KINDS))
    assert WebhookEndpoint.objects.count() == 1
