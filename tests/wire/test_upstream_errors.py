"""What an upstream's refusals become for our client, and what never gets through."""

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from chatapi.wire.upstream.upstream_errors import (
    complaint_in,
    failure_of_complaint,
    failure_of_status,
    retry_after_ms,
)
from chatapi.wire.upstream.words import MAX_MESSAGE_CHARACTERS, harmless

HTML = b"<html><body>nginx/1.2 at 10.0.0.7</body></html>"


def envelope(message: str = "bad", code: str | int | None = None, param: str | None = None) -> bytes:
    return json.dumps(
        {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}
    ).encode()


@pytest.mark.parametrize(
    ("status", "body", "our_status", "code"),
    [
        (401, envelope(), 502, "upstream_authentication"),
        (403, HTML, 502, "upstream_authentication"),
        (403, envelope(code="stopped_by_operator"), 403, "stopped_by_operator"),
        (400, envelope("API key not valid. Please pass a valid API key."), 502, "upstream_authentication"),
        (402, envelope(), 503, "upstream_quota_exhausted"),
        (429, envelope(code="insufficient_quota"), 503, "upstream_quota_exhausted"),
        (429, envelope(code="billing_not_active"), 503, "upstream_quota_exhausted"),
        (400, envelope(code="billing_hard_limit_reached"), 503, "upstream_quota_exhausted"),
        (
            400,
            envelope("Your credit balance is too low to access the Anthropic API."),
            503,
            "upstream_quota_exhausted",
        ),
        (
            400,
            envelope("You have reached your specified API usage limits."),
            503,
            "upstream_quota_exhausted",
        ),
        (
            429,
            envelope("Request too large for m on tokens per min (TPM): Limit 30, Requested 36."),
            503,
            "upstream_quota_too_small",
        ),
        (
            413,
            envelope("Request too large for model `m` on tokens per minute (TPM): Limit 30, Requested 36"),
            503,
            "upstream_quota_too_small",
        ),
        (413, envelope("Request too large"), 413, "request_too_large"),
        (429, envelope(), 429, "upstream_rate_limited"),
        (429, HTML, 429, "upstream_rate_limited"),
        (400, envelope("bad temperature", code="invalid_value"), 400, "invalid_value"),
        (422, envelope("bad", code=7), 400, None),
        (404, envelope("The model `m` does not exist"), 502, "upstream_model_not_found"),
        (404, envelope('model "m" not found, try pulling it first'), 502, "upstream_model_not_found"),
        (
            404,
            b'{"type":"error","error":{"type":"not_found_error","message":"model: claude-2.1"}}',
            502,
            "upstream_model_not_found",
        ),
        (400, envelope("No longer supported.", code="model_decommissioned"), 502, "upstream_model_not_found"),
        (404, envelope("No such deployment.", code="DeploymentNotFound"), 502, "upstream_model_not_found"),
        (400, envelope("Unable to access it.", code="model_not_available"), 502, "upstream_model_not_found"),
        (400, envelope("a/b is not a valid model ID", code=400), 502, "upstream_model_not_found"),
        (404, envelope("No endpoints found for a/b.", code=404), 502, "upstream_model_not_found"),
        (404, envelope("models/m is not found for API version v1"), 502, "upstream_model_not_found"),
        (404, envelope("No endpoints found that support tool use", code=404), 400, None),
        (404, b'{"detail":"Not Found"}', 502, "upstream_invalid_response"),
        (400, b'[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]', 400, None),
        (
            400,
            b'[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT"}}]',
            502,
            "upstream_authentication",
        ),
        (422, b'{"object":"error","message":{"detail":[{"msg":"Field required"}]}}', 400, None),
        (422, b'{"object":"error","message":{"detail":[]}}', 502, "upstream_invalid_response"),
        (400, b'{"detail":"bad temperature"}', 400, None),
        (422, b'{"detail":[{"loc":["body","n"],"msg":"Input should be 1"}]}', 400, None),
        (422, b'{"detail":[{"loc":[]},"bad"]}', 502, "upstream_invalid_response"),
        (400, HTML, 502, "upstream_invalid_response"),
        (400, envelope("This model's maximum context length is 4096 tokens"), 400, "context_length_exceeded"),
        (
            400,
            envelope("The input token count (9) exceeds the maximum number of tokens allowed (8)."),
            400,
            "context_length_exceeded",
        ),
        (400, envelope("This model's maximum prompt length is 8"), 400, "context_length_exceeded"),
        (400, envelope("is longer than the maximum model length of 8"), 400, "context_length_exceeded"),
        (
            422,
            b'{"error":"`inputs` tokens + `max_new_tokens` must be <= 8","error_type":"validation"}',
            400,
            "context_length_exceeded",
        ),
        (
            400,
            b'{"object":"error","message":"the request exceeds the available context size","code":400}',
            400,
            "context_length_exceeded",
        ),
        (413, HTML, 413, "request_too_large"),
        (307, b"", 502, "upstream_invalid_response"),
        (204, b"", 502, "upstream_invalid_response"),
        (418, envelope(), 502, "upstream_invalid_response"),
        (424, b'{"error":"CUDA error","error_type":"generation"}', 502, "upstream_error"),
        (498, envelope("Capacity exceeded"), 502, "upstream_error"),
        (408, b"", 504, "upstream_timeout"),
        (500, envelope(), 502, "upstream_error"),
        (502, HTML, 502, "upstream_error"),
        (503, b"", 503, "upstream_unavailable"),
        (504, HTML, 503, "upstream_unavailable"),
        (520, HTML, 502, "upstream_error"),
    ],
)
def test_statuses_are_divided_into_faults_of_client_and_upstream(
    status: int, body: bytes, our_status: int, code: str | None
) -> None:
    failure = failure_of_status(status, body)
    assert (failure.status, failure.code) == (our_status, code)
    assert "nginx" not in failure.message


def test_a_request_fault_keeps_message_and_param() -> None:
    failure = failure_of_status(400, envelope("temperature must be\n<= 2", param="temperature"))
    assert (failure.message, failure.param, failure.type) == (
        "temperature must be <= 2",
        "temperature",
        "invalid_request_error",
    )


def test_the_mistakes_that_fastapi_lists_are_one_message() -> None:
    listed = b'{"detail":[{"loc":["body","n"],"msg":"Input should be 1"},{"msg":"Field required"}]}'
    failure = failure_of_status(422, listed)
    assert (failure.message, failure.param) == ("n: Input should be 1; Field required", "n")


@pytest.mark.parametrize(
    ("place", "param"),
    [
        (["body", "messages", 0, "content"], "messages[0].content"),
        # A union's types are part of FastAPI's path.
        (["body", "messages", 2, "ChatCompletionUserMessageParam", "content"], "messages[2]"),
        (["body", "stop", "str"], "stop"),
        (["body", "stop", "list[str]", 0], "stop"),
        (["body", "tools", 0, "function", "name"], "tools[0].function.name"),
        (["body"], None),
        ([], None),
        ("body", None),
        (["body", {}], None),
        ([7], None),
    ],
)
@pytest.mark.parametrize("is_mistrals", [True, False])
def test_the_place_of_fastapis_first_mistake_is_the_parameter(
    place: object, param: str | None, is_mistrals: bool
) -> None:
    listed: dict[str, object] = {"detail": [{"loc": place, "msg": "Field required"}]}
    document = {"object": "error", "message": listed, "param": None} if is_mistrals else listed
    failure = failure_of_status(422, json.dumps(document).encode())
    message = "Field required" if param is None else f"{param}: Field required"
    assert (failure.message, failure.param) == (message, param)


@pytest.mark.parametrize(
    ("document", "status", "code"),
    [
        # TGI
        ({"error": "`n` must be 1", "error_type": "validation"}, 400, None),
        ({"error": "Template error: no user", "error_type": "template_error"}, 400, None),
        ({"error": "Tool error: no tool", "error_type": "tool_error"}, 400, None),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, 503, "upstream_unavailable"),
        ({"error": "CUDA error", "error_type": "generation"}, 502, "upstream_error"),
        # LiteLLM
        ({"error": {"message": "full", "type": "None", "code": "429"}}, 429, "upstream_rate_limited"),
        ({"error": {"message": "bad", "type": None, "code": "400"}}, 400, "400"),
        (
            {"error": {"message": "bad", "type": "rate_limit_error", "code": "4xx"}},
            429,
            "upstream_rate_limited",
        ),
        # Gemini
        ([{"error": {"code": 400, "message": "bad", "status": "INVALID_ARGUMENT"}}], 400, None),
        ([], 502, "upstream_error"),
    ],
)
def test_an_error_in_a_stream_has_its_status_in_code_or_type(
    document: object, status: int, code: str | None
) -> None:
    failure = failure_of_complaint(complaint_in(document))
    assert (failure.status, failure.code) == (status, code)


def test_refused_content_is_the_requests_fault_and_names_no_key_of_ours() -> None:
    words = "Content violates usage guidelines. Team: t1, API key ID: k1, Failed check: SAFETY_CHECK_TYPE_BIO"
    failure = failure_of_status(403, json.dumps({"code": "No permission", "error": words}).encode())
    assert (failure.status, failure.type, failure.code) == (400, "invalid_request_error", "content_filter")
    assert failure.message == "The upstream refused the request because of its content."


def test_a_servers_own_words_are_not_passed_on() -> None:
    assert (
        failure_of_status(500, envelope("Traceback: /opt/vllm/engine.py")).message == "The upstream failed."
    )


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


TABLE = [
    # what helps a client passes as it is
    "This model's maximum context length is 4096 tokens. "
    "You requested 5000 tokens (4000 in the messages, 1000 in the completion).",
    "max_tokens must be at least 1, got 0.",
    "temperature must be non-negative, got -1.0.",
    "top_k must be -1 (disable), or at least 1, got 0.",
    "presence_penalty must be in [-2, 2], got 3.5.",
    "logprobs must be non-negative, got -3. (parameter=logprobs, value=-3)",
    "min_tokens must be less than or equal to max_tokens=10, got 20.",
    "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required', 'input': None}]",
    "1 validation error for ChatCompletionRequest messages.0.role "
    "Input should be 'system', 'user' or 'assistant' [type=string_type]",
    "Invalid value for 'messages[0].content[1].image_url': expected at most 4194304 characters.",
    "the request exceeds the available context size (5000 > 4096), "
    "try increasing it: n_ctx = 4096, n_prompt_tokens = 5000",
    "'tool_choice' is only allowed when 'tools' are specified (e.g. \"auto\"), "
    "see response_format.json_schema.schema",
    "Unsupported content type image/png; use text, and 512x512 pixels or 10MB at most.",
    "参数max_tokens必须小于等于4096，当前值为99999",
    "Only up-to 20 top_logprobs are supported with 3-token choices.",
    # Anthropic's
    "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after",
    "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks",
    "messages.3.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed "
    "size for many-image requests: 2000 pixels",
    "tools.0.custom.input_schema.type: Field required",
    'Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.',
    "output_format.schema: Schema is too complex for compilation",
    "stop_sequences: each stop sequence must contain non-whitespace",
    "thinking.budget_tokens: Input should be greater than or equal to 1024",
]


@pytest.mark.parametrize("message", TABLE)
def test_what_speaks_of_the_request_passes(message: str) -> None:
    assert harmless(message) == message


SECRETS = [
    "vllm.internal",
    "gpu-node-07",
    "vllm-prod",
    "10.1.2.3",
    "fe80::1ff:fe23",
    "::1",
    "[::1]:8080",
    "api.corp.example:8443",
    "http://vllm.internal:8000/v1/chat",
    "//cdn.corp.example/x",
    "/opt/vllm/engine.py",
    "/etc/passwd",
    "etc/passwd",
    "~/models/llama",
    "C:\\models\\llama.gguf",
    "\\\\nas\\models",
    "models/llama.gguf",
    "meta-llama/Llama-3.1-8B",
    "ops@corp.example",
    "sk-proj-abcdef",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "d41d8cd98f00b204e9800998ecf8427e",
    "550e8400-e29b-41d4-a716-446655440000",
    "aGVsbG8gd29ybGQgaGVsbG8gd29ybGQ=",
    "QmFzZVNpeHR5Rm91ckxldHRlcnNPbmx5",
    "api_token=abcdef",
    "dbname=prod",
    "X-Internal=yes",
    "svc_vllm",
    "1.2.3",
    "pod-7f9c",
    "hunter2",
    "0x7ffde",
    "user:hunter",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "around", ["temperature is wrong at {}.", "bad model '{}', got 5", "({}): max_tokens", "see {} or {}"]
)
def test_what_may_be_an_upstreams_own_does_not(around: str, secret: str) -> None:
    shown = harmless(around.format(*[secret] * 2))
    assert secret.strip("[") not in shown
    assert "[hidden]" in shown or not shown


INSIDES = [
    'Traceback (most recent call last):\n  File "/opt/vllm/engine.py", line 12, in step\nValueError: boom',
    '(psycopg.OperationalError) connection to server at "db" failed: postgresql://svc:hunter@db/prod',
    "sqlalchemy.exc.OperationalError: FATAL: role svc does not exist",
    "the password for the gateway is swordfish",
    "could not connect to backend mars",
    "no route to host mars",
    "CUDA error: out of memory on worker mars",
    "TypeError: x is undefined at Object.run (/app/server.js:10:5)",
    "goroutine running panic: nil map",
    "<html><head><title>Bad Request</title></head>nginx</html>",
    "[Errno 2] No such file",
]


@pytest.mark.parametrize("message", INSIDES)
def test_a_message_about_a_servers_insides_is_not_shown_at_all(message: str) -> None:
    assert harmless(message) == ""
    failure = failure_of_status(400, envelope(message))
    assert failure.message == "The upstream refused the request."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("max_tokens: 99999 > 8192, which is the maximum", "max_tokens"),
        ("messages.1.content.0.text: Field required", "messages"),
        ("stop_sequences: each stop sequence must contain non-whitespace", "stop"),
        ("output_config.format.schema: For 'object' type, 'additionalProperties' is", "response_format"),
        ("output_config.effort: Input should be 'low'", "reasoning_effort"),
        ("system: text content blocks must be non-empty", None),
        ("Input tag 'x' found", None),
    ],
)
def test_anthropics_messages_begin_with_the_parameter(message: str, param: str | None) -> None:
    error = {"type": "invalid_request_error", "message": message}
    body = json.dumps({"type": "error", "error": error}).encode()
    assert failure_of_status(400, body).param == param


@pytest.mark.parametrize(
    ("param", "shown"),
    [
        ("temperature", "temperature"),
        ("messages[0].content", "messages[0].content"),
        ("messages.0.content", "messages.0.content"),
        ("my_parameter", "my_parameter"),
        ("db.corp.example", None),
        ("10.0.0.7", None),
        ("gpu-node-07", None),
        ("/etc/passwd", None),
    ],
)
def test_a_param_is_a_parameter(param: str, shown: str | None) -> None:
    assert failure_of_status(400, envelope("bad", param=param)).param == shown


@pytest.mark.parametrize(
    ("code", "shown"),
    [("invalid_value", "invalid_value"), ("1301", "1301"), ("db.corp.example", None), ("node-07", None)],
)
def test_a_code_is_words_or_a_number(code: str, shown: str | None) -> None:
    assert failure_of_status(400, envelope("bad", code=code)).code == shown


def test_a_long_message_is_judged_at_once() -> None:
    for text in (
        "a" * 2000,
        "a-" * 1000,
        "[" * 2000,
        "a[0]" * 500,
        "1." * 1000,
        "at (" * 500,
        "a_" * 1000,
        "messages" + ".a" * 900,
    ):
        began = time.thread_time()
        harmless(text)
        assert time.thread_time() - began < 0.02


PAGE = "<center><h1>400 Bad Request</h1></center><hr><center>nginx on host db-internal</center>"


@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": PAGE, "code": 400}},
        {"error": {"message": f"context length: {PAGE}"}},
        {"error": PAGE},
        {"message": PAGE},
    ],
)
def test_a_page_in_an_error_of_a_stream_is_not_passed_on(document: object) -> None:
    assert "db-internal" not in failure_of_complaint(complaint_in(document)).message


def test_messages_are_cut() -> None:
    assert len(harmless("word " * 1000)) == MAX_MESSAGE_CHARACTERS


def test_retry_after_is_seconds_or_a_date() -> None:
    assert failure_of_status(429, b"", {"retry-after": "1.5"}).retry_after_ms == 1500
    assert failure_of_status(503, b"", {"retry-after": "7"}).retry_after_ms == 7000
    in_a_minute = retry_after_ms(
        {"retry-after": format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)}
    )
    assert in_a_minute is not None
    assert 50_000 < in_a_minute <= 60_000


def test_retry_after_in_milliseconds_is_preferred() -> None:
    assert retry_after_ms({"retry-after-ms": "2500", "retry-after": "3"}) == 2500
    assert retry_after_ms({"retry-after-ms": "soon", "retry-after": "3"}) == 3000


@pytest.mark.parametrize(
    ("header", "ms"),
    [("", None), ("soon", None), ("-5", None), ("1e999", 86_400_000), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)],
)
def test_a_strange_retry_after_does_no_harm(header: str, ms: int | None) -> None:
    assert retry_after_ms({"retry-after": header}) == ms
    assert retry_after_ms({"retry-after-ms": header}) in (None, ms)
    assert retry_after_ms({}) is None
