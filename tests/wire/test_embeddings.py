"""Embeddings: bodies in, what an upstream is asked and answers, and the object that a client gets."""

import json
import struct
from array import array
from base64 import b64encode
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse

from chatapi.wire import caps, deltas, requests
from chatapi.wire.deltas import AnyDelta, Failed, Started, Usage, Vector
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols import Answer
from chatapi.wire.protocols.embeddings.folder import PIECE_BYTES, EmbeddingsFolder
from chatapi.wire.protocols.embeddings.request import parse
from chatapi.wire.sse import Event
from chatapi.wire.upstream.upstream_errors import UpstreamError
from chatapi.wire.upstream.upstream_kinds import UPSTREAM_KINDS
from chatapi.wire.upstream.vectors import TOO_LARGE, VectorReader
from tests.wire.embedding_cases import FOLDER, transcripts


def asked(**members: Any) -> GenerationRequest:
    """Return the request as a worker reads it."""
    request = parse(json.dumps({"model": "m", "input": "hi"} | members).encode())
    return requests.from_bytes(requests.to_bytes(request))


# ---- the request


@pytest.mark.parametrize(
    ("given", "texts", "bound"),
    [
        ("é", ["é"], 2 + 16),
        (["a b", "c"], ["a b", "c"], 5 + 32),
        ([1, 2, 3], [], 3 + 16),
        ([[1], [2, 3]], [], 3 + 32),
    ],
)
def test_input_is_a_text_or_several_or_token_ids(given: Any, texts: list[str], bound: int) -> None:
    request = asked(input=given)
    assert request.counted_texts == texts
    assert request.prompt_bytes == bound
    assert (request.choices_count, request.sampled_count, request.max_output_tokens) == (0, 0, 0)


@pytest.mark.parametrize(
    ("members", "param", "allowed"),
    [
        ({"input": None}, "input", "Missing"),
        ({"input": ""}, "input", "not empty"),
        ({"input": []}, "input", "length >= 1"),
        ({"input": ["a", ""]}, "input[1]", "not empty"),
        ({"input": [[]]}, "input[0]", "length >= 1"),
        ({"input": ["a", 1]}, "input", "only strings"),
        ({"input": [1, -1]}, "input[1]", ">= 0"),
        ({"input": 5}, "input", "a string or an array"),
        ({"input": ["a"] * 2_049}, "input", "at most 2048 inputs"),
        ({"dimensions": 0}, "dimensions", ">= 1"),
        ({"dimensions": 8_193}, "dimensions", "<= 8192"),
        ({"dimensions": "5"}, "dimensions", "an integer"),
        ({"dimensions": 1_537, "input": ["a"] * 2_048}, "dimensions", "at most 1536 for 2048 inputs"),
        ({"encoding_format": "hex"}, "encoding_format", "'base64', 'float'"),
        ({"user": "x" * 513}, "user", "length <= 512"),
    ],
)
def test_what_is_wrong_is_named(members: dict[str, Any], param: str, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(**members)
    assert refused.value.param == param
    assert allowed in refused.value.message


def test_the_format_is_part_of_the_request() -> None:
    assert asked(encoding_format="base64").digest != asked().digest == asked(encoding_format="float").digest


def test_an_upstream_is_asked_for_base64() -> None:
    request = asked(input=["a", "b"], dimensions=3, user="u", encoding_format="float", stream=True)
    kind = UPSTREAM_KINDS[type(request.prompt)]
    body = kind.body(request, model="theirs", max_output_tokens=0, extra_parameters=frozenset())
    assert kind.path == "/embeddings"
    assert body == {
        "model": "theirs",
        "input": ["a", "b"],
        "dimensions": 3,
        "user": "u",
        "encoding_format": "base64",
    }
    assert request.ignored == ("stream",)


# ---- an upstream's answer

ONE, TWO = (struct.pack("<2f", *vector) for vector in ([1, 0], [0.25, -0.5]))
TOLD = {"usage": {"prompt_tokens": 3, "total_tokens": 3}}
BOTH = [Started(), Vector(ONE, 0), Vector(TWO, 1)]


def read(document: Any, inputs: int = 2) -> list[AnyDelta]:
    """Return the deltas of an answer; raises `UpstreamError`."""
    reader = VectorReader(inputs)
    found = reader.read_answer(document if isinstance(document, bytes) else json.dumps(document).encode())
    return found + reader.end()


def answer(*vectors: Any, **members: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(vectors)]
    return {"object": "list", "data": data, **members}


@pytest.mark.parametrize(
    "document",
    [
        answer([1, 0], [0.25, -0.5], **TOLD),
        answer(b64encode(ONE).decode(), b64encode(TWO).decode(), **TOLD),
        answer([1.0, 0.0], b64encode(TWO).decode(), error=None, **TOLD),
        {"data": [{"embedding": [1, 0]}, {"embedding": [0.25, -0.5]}], **TOLD},
        {"data": answer([1, 0], [0.25, -0.5])["data"][::-1], **TOLD},
    ],
    ids=["numbers", "base64", "both", "without numbers of inputs", "in another order"],
)
def test_numbers_and_base64_are_the_same(document: Any) -> None:
    assert read(document) == [*BOTH, Usage(3, 0)]
    assert deltas.decode(deltas.encode(read(document))) == read(document)


@pytest.mark.parametrize("usage", [None, {}, 5, {"prompt_tokens": -1}, {"prompt_tokens": "3"}])
def test_a_usage_that_is_none_is_left_to_us(usage: object) -> None:
    assert read(answer([1, 0], [0.25, -0.5], usage=usage)) == BOTH


def test_a_zero_stays_a_zero() -> None:
    assert read(answer([1], usage={"prompt_tokens": 0}), 1)[-1] == Usage(0, 0)


@pytest.mark.parametrize("usage", [{"total_tokens": 3}, {"prompt_tokens": 3, "total_tokens": 4}])
def test_a_total_is_the_prompts_where_nothing_else_is_said(usage: object) -> None:
    assert read(answer([1], usage=usage), 1)[-1] == Usage(3, 0)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"data": [{"embedding": [NaN, 1]}, {"embedding": [1]}]}',
        {},
        answer([1, 0]),
        answer([1], [2], [3]),
        answer([1], []),
        answer([1], None),
        answer([1], ["x"]),
        answer([1], [1e39]),
        answer([1], "AAA"),
        answer([1], "AAAA"),
        answer([1], "AAAAAA==!"),
        answer([1], b64encode(struct.pack("<f", float("inf"))).decode()),
        {"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]},
        {"data": [{"index": -1, "embedding": [1]}, {"index": 0, "embedding": [1]}]},
    ],
    ids=str,
)
def test_anything_else_is_no_answer(document: Any) -> None:
    with pytest.raises(UpstreamError) as refused:
        read(document)
    assert refused.value.failure.code == "upstream_invalid_response"


def test_an_error_under_status_200_is_one() -> None:
    for document in ({"error": {"message": "down", "code": 503}}, {"message": "down", "code": 503}):
        with pytest.raises(UpstreamError) as refused:
            read(document)
        assert refused.value.failure.status == 503


def test_too_many_numbers_are_the_requests_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "MAX_VECTOR_VALUES", 3)
    with pytest.raises(UpstreamError) as refused:
        read(answer([1, 0], [0.25, -0.5]))
    assert refused.value.failure is TOO_LARGE
    assert (TOO_LARGE.status, TOO_LARGE.param) == (400, "input")


def test_an_answer_in_an_event_is_read() -> None:
    reader = VectorReader(1)
    assert reader.read([Event(b""), Event(json.dumps(answer([1])).encode()), Event(b"[DONE]")])
    assert (reader.is_done, reader.read_rest([]), reader.end()) == (True, [], [])


def test_no_answer_is_a_broken_connection() -> None:
    with pytest.raises(UpstreamError) as refused:
        VectorReader(1).end()
    assert refused.value.failure.code == "upstream_disconnected"


# ---- what a client gets


def folded(encoding_format: str, *found: AnyDelta, inputs: int = 2) -> EmbeddingsFolder:
    folder = EmbeddingsFolder(Answer("0" * 32, 0, "m", 0))
    context = {"inputs": inputs, "encoding_format": encoding_format}
    for delta in (Started(context=context), *found):
        folder.add(delta)
    return folder


@pytest.mark.parametrize(
    ("encoding_format", "vectors"),
    [("float", [[1.0, 0.0], [0.25, -0.5]]), ("base64", [b64encode(ONE).decode(), b64encode(TWO).decode()])],
)
def test_the_object_is_openais(encoding_format: str, vectors: list[Any]) -> None:
    body = folded(encoding_format, Vector(TWO, 1), Vector(ONE, 0), Usage(3, 0)).body()
    assert isinstance(body, bytes)
    assert json.loads(body) == answer(*vectors, model="m", **TOLD)
    if encoding_format == "float":
        CreateEmbeddingResponse.model_validate_json(body, strict=True, extra="forbid")


def test_answers_are_the_golden_transcripts() -> None:
    assert {path: path.read_bytes() for path in FOLDER.iterdir()} == dict(transcripts())


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_a_large_object_comes_in_pieces(encoding_format: str) -> None:
    values = array("f", [0.1] * 1_536).tobytes()
    vectors = [Vector(values, index) for index in range(40)]
    body = folded(encoding_format, *vectors, Usage(9, 0), inputs=40).body()
    assert not isinstance(body, bytes)
    pieces = list(body)
    assert max(map(len, pieces)) < 2 * PIECE_BYTES
    assert [each["index"] for each in json.loads(b"".join(pieces))["data"]] == list(range(40))


def test_a_part_of_the_vectors_is_none() -> None:
    failure = Failed("x")
    assert folded("float", Vector(ONE, 0), failure).failure is failure
    cancelled = folded("float", Vector(ONE, 0), Usage(0, 0)).failure
    assert cancelled is not None
    assert (cancelled.status, cancelled.code) == (409, "cancelled")
    folder = EmbeddingsFolder(Answer("0" * 32, 0, "m", 0))
    for delta in (Started(), Usage(0, 0)):  # cancelled before the first delta
        folder.add(delta)
    assert folder.failure is cancelled
