"""What an upstream sends beside a text: speech and citations."""

from typing import Any

import pytest

from chatapi.wire.deltas import Annotations, Audio, Finished, Started, Text
from tests.wire.upstream_events import STOP, chunk, event, failure_code, new_reader, read


def test_speech_and_citations_are_read() -> None:
    events = [
        chunk({"content": "Sun."}),
        chunk({"audio": {"id": "audio_1", "data": "AAE=", "transcript": "Sun."}}),
        chunk({"annotations": [{}]}),
    ]
    assert read(*events, STOP) == [
        Started(),
        Text("Sun."),
        Audio("AAE=", "Sun.", 0, "audio_1"),
        Annotations([{}]),
        Finished("stop"),
    ]


@pytest.mark.parametrize("data", ["AAE", "A=A=", "é", "AA\nEC"])
def test_sound_that_is_no_base64_is_an_error(data: str) -> None:
    assert failure_code(chunk({"audio": {"data": data}}), STOP) == "upstream_invalid_response"


BEYOND_64_BITS = 1 << 64


@pytest.mark.parametrize(
    "delta",
    [
        {"audio": {"data": "AAE=", "expires_at": BEYOND_64_BITS}},
        {"annotations": [{"url_citation": {"start_index": [BEYOND_64_BITS]}}]},
        {"annotations": [{"url_citation": {"start_index": -BEYOND_64_BITS}}]},
        {"tool_calls": [{"id": "c", "function": {"name": "f"}, "extra_content": {"n": BEYOND_64_BITS}}]},
    ],
)
def test_a_number_that_can_not_cross_redis_is_an_error(delta: dict[str, Any]) -> None:
    assert failure_code(chunk(delta), STOP) == "upstream_invalid_response"


@pytest.mark.parametrize("number", [-1, 256, BEYOND_64_BITS])
def test_a_tokens_byte_that_is_none_is_an_error(number: int) -> None:
    token = {"token": "a", "logprob": -1.0, "bytes": [number]}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [token]}}
    assert failure_code(event({"choices": [choice]}), STOP) == "upstream_invalid_response"


def test_pieces_of_sound_are_no_tokens() -> None:
    sounds = [chunk({"audio": {"data": "AAEC"}})] * 5
    assert read(*sounds, STOP, reader=new_reader(max_chunks=2))[-1] == Finished("stop")
