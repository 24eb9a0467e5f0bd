"""What an upstream's refusals become for our client, and what never gets through."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from chatapi.wire.upstream_errors import (
    MAX_MESSAGE_CHARACTERS,
    complaint_in,
    failure_of_complaint,
    failure_of_status,
    harmless,
    retry_after_ms,
)

HTML = b"<html><body>nginx/1.2 at 10.0.0.7</body></html>"


def envelope(message: str = "bad", code: str | int | None = None, param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "our_status", "code"),
    [
        (401, envelope(), 502, "upstream_authentication"),
        (403, HTML, 502, "upstream_authentication"),
        (403, envelope(code="stopped_by_operator"), 403, "stopped_by_operator"),
        (400, envelope("API key not valid. Please pass a valid API key."), 502, "upstream_authentication"),
        (402, envelope(), 503, "upstream_quota_exhausted"),
        (429, envelope(code="insufficient_quota"), 503, "upstream_quota_exhausted"),
        (429, envelope(), 429, "upstream_rate_limited"),
        (429, HTML, 429, "upstream_rate_limited"),
        (400, envelope("bad temperature", code="invalid_value"), 400, "invalid_value"),
        (422, envelope("bad", code=7), 400, None),
        (404, envelope("The model `m` does not exist"), 502, "upstream_model_not_found"),
        (404, envelope('model "m" not found, try pulling it first'), 502, "upstream_model_not_found"),
        (404, b'{"detail":"Not Found"}', 502, "upstream_invalid_response"),
        (400, HTML, 502, "upstream_invalid_response"),
        (400, envelope("This model's maximum context length is 4096 tokens"), 400, "context_length_exceeded"),
        (400, b'{"object":"error","message":"the request exceeds the available context size","code":400}', 400, "context_length_exceeded"),
        (413, HTML, 413, "request_too_large"),
        (307, b"", 502, "upstream_invalid_response"),
        (204, b"", 502, "upstream_invalid_response"),
        (418, envelope(), 502, "upstream_invalid_response"),
        (408, b"", 504, "upstream_timeout"),
        (500, envelope(), 502, "upstream_error"),
        (502, HTML, 502, "upstream_error"),
        (503, b"", 503, "upstream_unavailable"),
        (504, HTML, 503, "upstream_unavailable"),
        (520, HTML, 502, "upstream_error"),
    ],
)
def test_statuses_are_told_apart_by_whose_fault_they_are(status: int, body: bytes, our_status: int, code: str | None) -> None:
    failure = failure_of_status(status, body)
    assert (failure.status, failure.code) == (our_status, code)
    assert "nginx" not in failure.message


def test_a_request_fault_keeps_message_and_param() -> None:
    failure = failure_of_status(400, envelope("temperature must be\n<= 2", param="temperature"))
    assert (failure.message, failure.param, failure.type) == ("temperature must be <= 2", "temperature", "invalid_request_error")


def test_a_servers_own_words_are_not_passed_on() -> None:
    assert failure_of_status(500, envelope("Traceback: /opt/vllm/engine.py")).message == "The upstream failed."


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("see https://10.1.2.3/x?key=abc for more", "see [hidden] for more"),
        ("Incorrect: sk-proj-abc123.", "Incorrect: [hidden]."),
        ("sent Bearer abc to 10.0.0.1:8000", "sent [hidden] to [hidden]"),
        ("token " + "a1" * 20, "token [hidden]"),
        ("a\x00b\r\n\tc\u2028d", "a b c d"),
        ("<!DOCTYPE html><html>secret", ""),
        ("<center><h1>400 Bad Request</h1></center><hr><center>nginx on host db-internal</center>", ""),
        ("oops</pre> at db-internal", ""),
        ("see <!-- db-internal -->", ""),
        ("<?xml version='1.0'?> db-internal", ""),
        (
            "min_tokens must be < max_tokens, and 1 <2, 3<4 and <|eos|> are fine",
            "min_tokens must be < max_tokens, and 1 <2, 3<4 and <|eos|> are fine",
        ),
        ("max_completion_tokens is too large: 99999", "max_completion_tokens is too large: 99999"),
    ],
)
def test_messages_are_made_harmless(message: str, shown: str) -> None:
    assert harmless(message) == shown


PAGE = "<center><h1>400 Bad Request</h1></center><hr><center>nginx on host db-internal</center>"


@pytest.mark.parametrize(
    "document",
    [{"error": {"message": PAGE, "code": 400}}, {"error": {"message": f"context length: {PAGE}"}}, {"error": PAGE}, {"message": PAGE}],
)
def test_a_page_in_an_error_of_a_stream_is_not_passed_on(document: object) -> None:
    assert "db-internal" not in failure_of_complaint(complaint_in(document)).message


def test_messages_are_cut() -> None:
    assert len(harmless("word " * 1000)) == MAX_MESSAGE_CHARACTERS


def test_retry_after_is_seconds_or_a_date() -> None:
    assert failure_of_status(429, b"", {"retry-after": "1.5"}).retry_after_ms == 1500
    assert failure_of_status(503, b"", {"retry-after": "7"}).retry_after_ms == 7000
    in_a_minute = retry_after_ms({"retry-after": format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)})
    assert in_a_minute is not None
    assert 50_000 < in_a_minute <= 60_000


def test_retry_after_in_milliseconds_is_preferred() -> None:
    assert retry_after_ms({"retry-after-ms": "2500", "retry-after": "3"}) == 2500
    assert retry_after_ms({"retry-after-ms": "soon", "retry-after": "3"}) == 3000


@pytest.mark.parametrize(
    ("header", "ms"), [("", None), ("soon", None), ("-5", None), ("1e999", 86_400_000), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)]
)
def test_a_strange_retry_after_does_no_harm(header: str, ms: int | None) -> None:
    assert retry_after_ms({"retry-after": header}) == ms
    assert retry_after_ms({"retry-after-ms": header}) in (None, ms)
    assert retry_after_ms({}) is None
