"""What a client of `/v1/embeddings` sees, what its upstream is asked, and what stands in the books."""

import json
import struct
from base64 import b64decode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from typing import Any
from uuid import uuid4

import pytest
from openai.types import CreateEmbeddingResponse

from chatapi.wire import tokens
from tests.chatapi.http_client import Answer, Client
from tests.chatapi.open_generations import OpenGenerations
from tests.chatapi.test_client_leaves import cut_call, new_generation
from tests.chatapi.test_rate_limits_end_to_end import limited
from tests.installation import Installation, free_port, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

PATH = "/v1/embeddings"
Vectors = list[list[float]]


def ask(
    client: Client,
    given: Any = "hello",
    model: str = "sandbox-embedding",
    *,
    key: str | None = None,
    **members: Any,
) -> Answer:
    body = json.dumps({"model": model, "input": given, **members}).encode()
    return client.send("POST", PATH, body, idempotency_key=key)


def vectors(answer: Answer) -> Vectors:
    """Return the vectors as 32-bit floats, in the order of their numbers."""
    assert answer.status == 200, answer.body
    data = answer.json["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return [_numbers(each["embedding"]) for each in data]


def _numbers(embedding: str | list[float]) -> list[float]:
    encoded = (
        b64decode(embedding) if isinstance(embedding, str) else struct.pack(f"<{len(embedding)}f", *embedding)
    )
    return list(struct.unpack(f"<{len(encoded) // 4}f", encoded))


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.fixture
def key() -> str:
    return f"key-{uuid4()}"


# ---- the answer


def test_an_answer_is_openais_and_as_charged(client: Client, installation: Installation) -> None:
    answer = ask(client, ["hello there", "hello"])
    found = CreateEmbeddingResponse.model_validate_json(answer.body, strict=True, extra="forbid")
    assert found.model == "sandbox-embedding"
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert answer.headers["x-generation-id"] == receipt["id"] == f"embd-{receipt['id'][5:]}"
    assert (receipt["endpoint"], receipt["outcome"], receipt["finish_reason"]) == (
        "embeddings",
        "completed",
        None,
    )
    assert found.usage.prompt_tokens == found.usage.total_tokens == receipt["usage"]["prompt_tokens"] == 3
    assert receipt["usage"]["completion_tokens"] == 0
    # A dollar for a million tokens, and nothing for output.
    assert receipt["amount_nanodollars"] == 3 * 1_000


def test_base64_is_the_same_vectors(client: Client) -> None:
    given = ["a cat", "a dog"]
    shown = ask(client, given, encoding_format="base64")
    assert isinstance(shown.json["data"][0]["embedding"], str)
    assert (
        vectors(shown) == vectors(ask(client, given)) == vectors(ask(client, given, encoding_format="float"))
    )


def test_the_sandbox_is_deterministic_and_knows_what_is_alike(client: Client) -> None:
    cat, sofa, prices = vectors(ask(client, ["The cat sleeps", "the cat on a sofa", "stock prices rise"]))
    assert len(cat) == 1_536
    assert likeness(cat, cat) == pytest.approx(1)
    assert likeness(cat, sofa) > likeness(cat, prices) + 0.2
    assert vectors(ask(client, "The cat sleeps")) == [cat]


def test_fewer_dimensions_are_the_first_ones_of_unit_length(client: Client) -> None:
    (whole,), (few,) = (vectors(ask(client, dimensions=dimensions)) for dimensions in (1_536, 16))
    length = sqrt(likeness(whole[:16], whole[:16]))
    assert few == pytest.approx([value / length for value in whole[:16]])
    refused = ask(client, dimensions=1_537)
    assert (refused.status, refused.error["param"]) == (400, "dimensions")


def test_token_ids_are_their_text(client: Client) -> None:
    ids = [13225, 1354]
    asked = [ask(client, given) for given in (ids, [ids], tokens.decode(ids))]
    assert len({str(vectors(answer)) for answer in asked}) == 1
    assert {answer.json["usage"]["prompt_tokens"] for answer in asked} == {2}


def test_as_many_as_there_may_be(client: Client) -> None:
    """The answer has 12 MiB of vectors, which cross Redis in many entries."""
    given = [f"input {number}" for number in range(2_048)]
    answer = ask(client, given, encoding_format="base64")
    found = vectors(answer)
    assert found[::512] == vectors(ask(client, given[::512]))
    assert answer.json["usage"]["prompt_tokens"] == sum(map(tokens.count, given))


def test_a_large_body_is_parsed_elsewhere(client: Client) -> None:
    assert len(vectors(ask(client, ["x " * 50_000] * 2))) == 2
    refused = ask(client, ["x " * 50_000, ""])
    assert (refused.status, refused.error["param"]) == (400, "input[1]")


# ---- the sandbox's markers, test keys


@pytest.mark.parametrize(
    ("marker", "status", "code"),
    [
        ("error=rate_limit retry_after_ms=2500", 429, "upstream_rate_limited"),
        ("error=overloaded after=1", 503, "upstream_unavailable"),
        ("error=nonsense", 400, "invalid_sandbox_marker"),
    ],
)
def test_markers_mean_what_they_mean_in_chat(
    client: Client, installation: Installation, marker: str, status: int, code: str
) -> None:
    refused = ask(client, [f"hello [sandbox {marker}]", "hello"])
    assert (refused.status, refused.error["code"]) == (status, code)
    assert installation.receipt(refused.headers["x-generation-id"])["amount_nanodollars"] == 0
    if status == 429:
        assert refused.headers["retry-after-ms"] == "2500"


def test_a_marker_is_no_word(client: Client) -> None:
    assert vectors(ask(client, "hello [sandbox delay_ms=1]")) == vectors(ask(client))


def test_a_test_key_reaches_the_sandbox_for_nothing(installation: Installation) -> None:
    tester = Client(installation.url, installation.keys["test"])
    answer = ask(tester, model="embeds")
    assert len(vectors(answer)[0]) == 1_536
    receipt = tester.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json
    assert (receipt["is_test"], receipt["amount_nanodollars"]) == (True, 0)


# ---- upstreams


@pytest.mark.parametrize("model", ["embeds", "embeds-as-numbers"])
def test_an_upstream_may_answer_in_either_form(
    client: Client, installation: Installation, model: str
) -> None:
    answer = ask(client, ["a b", "c d"], model, dimensions=3, user="someone")
    assert vectors(answer) == [[0.0] * 3, [1.0] * 3]
    call = installation.calls(model)[-1]
    assert call["path"] == PATH
    assert call["body"] == {
        "model": model,
        "input": ["a b", "c d"],
        "dimensions": 3,
        "user": "someone",
        "encoding_format": "base64",
    }


@pytest.mark.parametrize(
    ("model", "prompt_tokens", "source", "note"),
    [
        ("embeds", 7, "upstream", None),
        ("embeds-as-numbers", 4, "counted", None),
        ("embeds-too-many-tokens", 4, "counted", "upstream_implausible"),
    ],
)
def test_a_plausible_usage_is_believed(
    client: Client, installation: Installation, model: str, prompt_tokens: int, source: str, note: str | None
) -> None:
    answer = ask(client, ["a b", "c d"], model)
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert answer.json["usage"]["prompt_tokens"] == receipt["usage"]["prompt_tokens"] == prompt_tokens
    assert (receipt["usage_source"], receipt["usage_note"]) == (source, note)


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("embeds-429", 429, "upstream_rate_limited"),
        ("embeds-500", 502, "upstream_error"),
        ("embeds-400", 400, "context_length_exceeded"),
        ("embeds-too-few", 502, "upstream_invalid_response"),
        ("embeds-too-much", 400, "too_many_embeddings"),
    ],
)
def test_a_failure_is_the_same_error_as_in_chat_and_costs_nothing(
    client: Client, installation: Installation, model: str, status: int, code: str
) -> None:
    refused = ask(client, ["a", "b"], model)
    assert (refused.status, refused.error["code"]) == (status, code)
    receipt = installation.receipt(refused.headers["x-generation-id"])
    assert (receipt["outcome"], receipt["amount_nanodollars"]) == ("failed", 0)


FAILS_OVER = """
[[models]]
id = "embeds-elsewhere"
kind = "embeddings"
context_window = 8192
max_output_tokens = 1
price = {{ input_per_mtok = "1", output_per_mtok = "0" }}
deployments = [
    {{ engine = "openai_compatible", upstream_model = "embeds", base_url = "http://127.0.0.1:{port}/v1" }},
    {{ engine = "openai_compatible", upstream_model = "embeds", base_url = "{url}/v1", priority = 1 }},
]
"""


def test_the_next_deployment_is_asked(client: Client, installation: Installation) -> None:
    installation.load_catalog(FAILS_OVER.format(port=free_port(), url=installation.upstream_url))
    assert vectors(ask(client, model="embeds-elsewhere")) == [[0.0] * 4]


# ---- what is refused before anything is held


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"model": "five", "input": "hello"}),
        ("/v1/chat/completions", {"model": "embeds", "messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"model": "embeds", "prompt": "hello", "stream": True}),
    ],
)
def test_a_model_of_another_kind_is_named(client: Client, path: str, body: dict[str, Any]) -> None:
    refused = client.send("POST", f"/openai{path}", json.dumps(body).encode())
    assert (refused.status, refused.error["code"], refused.error["param"]) == (
        400,
        "model_not_supported",
        "model",
    )
    assert "x-generation-id" not in refused.headers


def test_only_the_prompt_is_held_for(
    client: Client, installation: Installation, keys: dict[str, str]
) -> None:
    calls = len(installation.calls("embeds"))
    refused = ask(Client(installation.url, keys["poor key"]), model="embeds")
    assert (refused.status, refused.error["code"]) == (402, "insufficient_quota")
    # 5 bytes and 16 tokens at a dollar for a million
    assert "up to $0.000021" in refused.error["message"]
    assert len(installation.calls("embeds")) == calls


def test_limits_are_those_of_chat(installation: Installation) -> None:
    poor = limited(installation, "embeddings", requests_per_minute=1)
    assert [ask(poor, model="embeds").status for _ in range(2)] == [200, 429]
    assert poor.complete("five").status == 429


# ---- again, later, elsewhere


def test_an_answer_is_replayed_at_another_web_process(
    client: Client, installation: Installation, key: str
) -> None:
    calls = len(installation.calls("embeds"))
    first = ask(client, ["a", "b"], "embeds", key=key)
    with installation.another_web() as another:
        again = ask(Client(another.url, client.key), ["a", "b"], "embeds", key=key)
    assert (again.body, again.headers["idempotent-replayed"]) == (first.body, "true")
    assert len(installation.calls("embeds")) == calls + 1
    assert ask(client, "c", "embeds", key=key).error["code"] == "idempotency_key_reused"


def test_only_a_key_keeps_vectors(client: Client, installation: Installation, key: str) -> None:
    answers = [ask(client, "hello", "embeds", key=each) for each in (key, None)]
    kept, gone = (f"chatapi:log:{answer.headers['x-generation-id'][5:]}" for answer in answers)
    with installation.open_valkey() as redis:
        wait_for(lambda: not redis.exists(gone), "the vectors to be forgotten")
        assert redis.exists(kept)


def test_large_answers_of_one_organization_wait_for_each_other(client: Client) -> None:
    given = ["hello"] * 1_024
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: ask(client, given, encoding_format="base64"), range(6)))
    assert {answer.status for answer in answers} == {200}


def test_many_at_once_are_one_generation(client: Client, installation: Installation, key: str) -> None:
    calls = len(installation.calls("embeds-late"))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(client, model="embeds-late", key=key), range(4)))
    assert len({answer.body for answer in answers}) == 1
    assert len(installation.calls("embeds-late")) == calls + 1


def test_keys_belong_to_an_api_key(
    client: Client, installation: Installation, keys: dict[str, str], key: str
) -> None:
    mine, theirs = (ask(each, key=key) for each in (client, Client(installation.url, keys["stranger"])))
    assert mine.headers["x-generation-id"] != theirs.headers["x-generation-id"]
    stranger = Client(installation.url, keys["stranger"])
    assert stranger.send("GET", f"/v1/generations/{mine.headers['x-generation-id']}").status == 404


def test_there_is_no_stream_and_nothing_later(client: Client) -> None:
    body = json.dumps({"model": "embeds", "input": "hello", "stream": True}).encode()
    answer = client.send("POST", PATH, body, prefer="respond-async")
    assert (answer.status, answer.headers["x-chatapi-ignored"]) == (200, "stream")
    resumed = client.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}/stream")
    assert (resumed.status, resumed.error["code"]) == (400, "not_streamable")


def test_what_is_cancelled_is_no_answer_and_costs_nothing(
    client: Client, installation: Installation, open_generations: OpenGenerations
) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, client, "hello", "embeds-late")
        generation_id = new_generation(open_generations)
        assert client.send("POST", f"/v1/generations/{generation_id}/cancel").status == 202
        refused = asking.result()
    assert (refused.status, refused.error["code"]) == (409, "cancelled")
    receipt = installation.receipt(generation_id)
    assert (receipt["outcome"], receipt["amount_nanodollars"]) == ("client_cancelled", 0)


def test_a_client_that_leaves_stops_the_upstream(
    client: Client, installation: Installation, open_generations: OpenGenerations
) -> None:
    body = json.dumps({"model": "embeds-late", "input": "hello"}).encode()
    calls = len(installation.calls("embeds-late"))
    with client.exchange("POST", PATH, body, {}) as exchange:
        generation_id = new_generation(open_generations)
        # A client that leaves before has its request stopped before the upstream is asked.
        wait_for(lambda: len(installation.calls("embeds-late")) > calls, "the upstream to be asked")
        exchange.leave()
    cut_call(installation, "embeds-late")
    assert installation.receipt(generation_id)["amount_nanodollars"] == 0
