"""A worker that dies, fails or freezes around the switch to another model: the model that produced tokens is
charged for them, and no other model for anything.
"""

from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

import pytest

from tests.faults import armed
from tests.faults.conftest import Ask
from tests.installation import Installation, free_port, wait_for
from usage import failpoints

pytestmark = [pytest.mark.xdist_group("fallbacks"), pytest.mark.timeout(180)]

ENVIRONMENT = armed.ENVIRONMENT
PROMPT_TOKEN, TOKEN = 3_000, 6_000
"""What a token costs at the model that answers, in nanodollars."""
CATALOG = """
[[models]]
id = "gone"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "1", output_per_mtok = "2" }}
deployments = [{{ engine = "openai_compatible", base_url = "http://127.0.0.1:{port}/v1" }}]

[[models]]
id = "dear"
context_window = 8192
max_output_tokens = 1024
price = {{ input_per_mtok = "3", output_per_mtok = "6" }}
deployments = [{{ engine = "openai_compatible", base_url = "{url}/v1", upstream_model = "a-second" }}]
"""


@pytest.fixture(autouse=True)
def everyone_lives(installation: Installation) -> None:
    """Start all processes that have died, and a reaper; serve the two models."""
    installation.revive()
    catalog = installation.folder / "fallbacks.toml"
    if not catalog.exists():
        catalog.write_text(CATALOG.format(port=free_port(), url=installation.upstream_url))
        assert installation.manage("loadcatalog", str(catalog)).returncode == 0


def calls_with(installation: Installation, prompt: str) -> list[dict[str, Any]]:
    """Return the calls that the model that answers got with this prompt."""
    return [
        call for call in installation.calls("a-second") if call["body"]["messages"][0]["content"] == prompt
    ]


def asking(ask: Ask, prompt: str, *, stream: bool) -> Any:
    messages = [{"role": "user", "content": prompt}]
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return ask("gone", models=["dear"], stream=stream, messages=messages, **options)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("failpoint", "action"), [*product(failpoints.OF_SWITCHES, armed.ACTIONS)])
def test_the_books_are_right_wherever_the_switch_is_struck(
    installation: Installation, ask: Ask, failpoint: str, action: str, stream: bool
) -> None:
    strike = armed.Strike(installation, failpoint, action)
    prompt = f"{failpoint} {action} {uuid4()}"
    answer = asking(ask, prompt, stream=stream)
    strike.wait(partial(getattr, answer, "has_ended"))
    installation.revive()
    wait_for(lambda: answer.has_ended, "the client's end")
    receipt = installation.receipt(answer.generation_id)
    sent = sum(call["tokens"] for call in calls_with(installation, prompt))
    if receipt["usage"]["completion_tokens"]:
        assert (receipt["model"], receipt["requested_model"]) == ("dear", "gone")
        assert receipt["usage"]["completion_tokens"] <= sent
    else:
        assert (receipt["amount_nanodollars"], receipt["is_waived"]) == (0, True)
        is_switched = failpoint == "switch.after_commit" and action == "kill9"
        assert not is_switched or receipt["model"] == "dear"
    if action == "kill9":
        assert sent == 0, "the model that answers is asked only after the commit"
        assert receipt["outcome"] == "worker_lost"
        assert answer.ends == 1
    wait_for(lambda: asking(ask, "again", stream=True).end().is_done, "service")


@pytest.mark.parametrize("stream", [True, False])
def test_the_reaper_charges_the_model_that_produced_the_tokens(
    installation: Installation, ask: Ask, stream: bool
) -> None:
    prompt = f"mid-stream {uuid4()}"
    answer = asking(ask, prompt, stream=stream)
    wait_for(lambda: sum(call["tokens"] for call in calls_with(installation, prompt)) > 30, "some tokens")
    installation.end("worker")
    installation.revive()
    wait_for(lambda: answer.has_ended, "the client's end")
    receipt = installation.receipt(answer.generation_id)
    assert (receipt["model"], receipt["requested_model"], receipt["outcome"]) == (
        "dear",
        "gone",
        "worker_lost",
    )
    used = receipt["usage"]
    assert used["completion_tokens"] >= len(answer.words)
    if stream:
        assert used["completion_tokens"] > 0
    # Without completion tokens, as in an answer in one piece that is cut off, not even the prompt is charged.
    cost = PROMPT_TOKEN * used["prompt_tokens"] + TOKEN * used["completion_tokens"]
    assert receipt["amount_nanodollars"] == (cost if used["completion_tokens"] else 0)
