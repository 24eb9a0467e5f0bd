"""A client that leaves: its upstream is cut within two seconds, and it pays for what the upstream had sent by
then.
"""

import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest

from tests.chatapi.http_client import HELLO, Client
from tests.chatapi.open_generations import OpenGenerations
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CUT_WITHIN_S = 2.0
BOTH_WAYS = pytest.mark.parametrize("stream", [True, False])


def cut_call(installation: Installation, model: str) -> dict[str, Any]:
    """Return the upstream's record of the model's last call, once its connection has been cut."""
    wait_for(lambda: bool(installation.calls(model)[-1]["is_peer_gone"]), "the cut", timeout_s=5)
    return installation.calls(model)[-1]


def new_generation(generations: OpenGenerations) -> str:
    """Return the id of the generation that has just been enqueued."""
    wait_for(lambda: len(generations.new()) == 1, "the request in the queue")
    return generations.new()[0]


def assert_cancelled(receipt: dict[str, Any], completion_tokens: int) -> None:
    assert (receipt["outcome"], receipt["error"]) == ("client_cancelled", None)
    assert receipt["usage"]["completion_tokens"] == completion_tokens
    assert receipt["usage_source"] == ("counted" if completion_tokens else "none")
    assert bool(receipt["amount_nanodollars"]) is bool(completion_tokens)


def test_a_stream_is_cut_and_what_was_sent_is_charged(client: Client, installation: Installation) -> None:
    with client.asking("three-then-silence", stream=True) as exchange:
        assert list(islice(exchange.texts(), 3)) == [" the", " of", " and"]
        generation_id = exchange.response.headers["x-generation-id"]
        left_at = exchange.leave()
    call = cut_call(installation, "three-then-silence")
    assert call["closed_at"] - left_at <= CUT_WITHIN_S
    assert call["tokens"] == 3
    assert_cancelled(installation.receipt(generation_id), 3)


def test_a_client_that_leaves_pays_for_its_pictures(client: Client, installation: Installation) -> None:
    """Their tokens are only known to the upstream, which has said them before its answer."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages = [{"role": "user", "content": [picture]}]
    with client.asking("counts-pictures", stream=True, messages=messages) as exchange:
        assert len(list(islice(exchange.texts(), 3))) == 3
        generation_id = exchange.response.headers["x-generation-id"]
        exchange.leave()
    receipt = installation.receipt(generation_id)
    assert (receipt["outcome"], receipt["usage_source"]) == ("client_cancelled", "counted")
    assert (receipt["usage"]["prompt_tokens"], receipt["usage"]["completion_tokens"]) == (900, 3)
    assert receipt["amount_nanodollars"] == 900 * 1_000 + 3 * 2_000


def test_a_client_that_leaves_pays_for_no_earlier_reasoning(
    client: Client, installation: Installation
) -> None:
    """Only deployments with `reasoning_content` in `extra_parameters` get it."""
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I think. " * 100}]}
    charged = []
    for items in ([reasoning], []):
        turns = [*HELLO, *items, {"role": "assistant", "content": "hi"}, *HELLO]
        body = json.dumps({"model": "three-then-silence", "input": turns, "stream": True}).encode()
        with client.exchange("POST", "/v1/responses", body, {}) as exchange:
            while b"response.output_text.delta" not in exchange.response.readline():
                pass
            generation_id = exchange.response.headers["x-generation-id"]
        charged.append(installation.receipt(generation_id)["usage"]["prompt_tokens"])
    assert charged[0] == charged[1] > 0


@pytest.mark.parametrize("seen", [1, 10])
def test_an_abandoned_stream_is_charged_for_at_most_two_more_seconds(
    client: Client, installation: Installation, seen: int
) -> None:
    with client.asking("steady", stream=True) as exchange:
        assert len(list(islice(exchange.texts(), seen))) == seen
        left_at = exchange.leave()
    call = cut_call(installation, "steady")
    receipt = installation.receipt(exchange.response.headers["x-generation-id"])
    charged = receipt["usage"]["completion_tokens"]
    assert call["closed_at"] - left_at <= CUT_WITHIN_S
    assert receipt["outcome"] == "client_cancelled"
    # What was on its way when the connection was cut has reached nobody.
    assert seen <= charged <= call["tokens"] <= seen + math.ceil(40 * CUT_WITHIN_S)


def test_an_answer_in_one_piece_is_cut_too(
    client: Client, installation: Installation, open_generations: OpenGenerations
) -> None:
    with client.asking("three-then-silence") as exchange:
        generation_id = new_generation(open_generations)
        wait_for(lambda: open_generations.has_published(generation_id, "the of and"), "three tokens")
        left_at = exchange.leave()
    call = cut_call(installation, "three-then-silence")
    assert call["closed_at"] - left_at <= CUT_WITHIN_S
    assert_cancelled(installation.receipt(generation_id), call["tokens"])
    assert call["tokens"] == 3


@BOTH_WAYS
def test_leaving_before_the_first_token_costs_nothing(
    client: Client, installation: Installation, open_generations: OpenGenerations, stream: bool
) -> None:
    calls = len(installation.calls("slow-to-begin"))
    with client.asking("slow-to-begin", stream=stream) as exchange:
        generation_id = new_generation(open_generations)
        wait_for(lambda: len(installation.calls("slow-to-begin")) > calls, "the upstream's call")
        left_at = exchange.leave()
    call = cut_call(installation, "slow-to-begin")
    assert call["closed_at"] - left_at <= CUT_WITHIN_S
    assert call["tokens"] == 0
    assert_cancelled(installation.receipt(generation_id), 0)


@BOTH_WAYS
def test_leaving_the_queue_calls_no_upstream(
    client: Client, installation: Installation, open_generations: OpenGenerations, stream: bool
) -> None:
    calls = len(installation.calls("five"))
    with frozen(installation, "worker"):
        with client.asking("five", stream=stream) as exchange:
            generation_id = new_generation(open_generations)
            exchange.leave()
        wait_for(lambda: open_generations.is_cancelled(generation_id), "the web process's word")
    assert_cancelled(installation.receipt(generation_id), 0)
    assert len(installation.calls("five")) == calls


def test_a_deployment_that_drains_finishes_what_it_has_begun(
    client: Client, installation: Installation
) -> None:
    with client.asking("drains", stream=True) as exchange:
        assert len(list(islice(exchange.texts(), 2))) == 2
        exchange.leave()
    receipt = installation.receipt(exchange.response.headers["x-generation-id"])
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("completed", 10)


def test_a_deployment_that_drains_begins_nothing_for_nobody(
    client: Client, installation: Installation, open_generations: OpenGenerations
) -> None:
    calls = len(installation.calls("drains"))
    with client.asking("drains", stream=True) as exchange:
        generation_id = new_generation(open_generations)
        wait_for(lambda: len(installation.calls("drains")) > calls, "the upstream's call")
        exchange.leave()
    assert cut_call(installation, "drains")["tokens"] == 0
    assert_cancelled(installation.receipt(generation_id), 0)


def test_a_deployment_that_continues_runs_even_what_still_waited(
    client: Client, installation: Installation, open_generations: OpenGenerations
) -> None:
    with frozen(installation, "worker"):
        with client.asking("continues", stream=True) as exchange:
            generation_id = new_generation(open_generations)
            exchange.leave()
        wait_for(lambda: open_generations.is_cancelled(generation_id), "the web process's word")
    receipt = installation.receipt(generation_id)
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("completed", 5)


def test_a_client_that_has_the_whole_answer_has_not_left(client: Client, installation: Installation) -> None:
    with client.asking("five", stream=True) as exchange:
        *_, done = exchange.data()
        assert done == "[DONE]"
        exchange.leave()
    assert installation.receipt(exchange.response.headers["x-generation-id"])["outcome"] == "completed"


@contextmanager
def frozen(installation: Installation, name: str) -> Iterator[None]:
    """Stop the process inside the block."""
    installation.send(name, signal.SIGSTOP)
    try:
        yield
    finally:
        installation.send(name, signal.SIGCONT)
