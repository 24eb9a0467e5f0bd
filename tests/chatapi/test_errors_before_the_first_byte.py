"""Every error that is known before the first byte is a JSON envelope with its own status, for streams too."""

import json
from typing import Any

import pytest

from accounts import api_keys
from tests.chatapi.http_client import HELLO, Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CHAT = "/v1/chat/completions"
GOOD = json.dumps({"model": "five", "messages": HELLO}).encode()
BOTH_WAYS = pytest.mark.parametrize("stream", [True, False])


def error_of(answer: Answer) -> tuple[int, str, str | None, str | None]:
    """Return status, type, code and param of an error."""
    error = answer.error
    return answer.status, error["type"], error["code"], error["param"]


# ---- 400: the body

NO_JSON = {
    "nothing": b"",
    "half an object": b'{"model": "five", "messages": [',
    "no object": b"[]",
    "null": b"null",
    "two documents": b"{}{}",
    "a form": b"model=five&messages=hello",
    "latin-1": '{"model": "é"}'.encode("latin-1"),
    "NaN": b'{"model": "five", "temperature": NaN}',
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_a_body_that_is_no_json_object_is_400(client: Client, body: bytes) -> None:
    assert error_of(client.send("POST", CHAT, body)) == (400, "invalid_request_error", "invalid_json", None)


def test_json_that_is_too_deep_is_400(client: Client) -> None:
    assert error_of(client.send("POST", CHAT, b"[" * 100_000)) == (
        400,
        "invalid_request_error",
        "too_deep",
        None,
    )


WRONG = [
    ({"model": 5}, "invalid_type", "model"),
    ({"model": None}, "missing_required_parameter", "model"),
    ({"messages": "hello"}, "invalid_type", "messages"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content"),
    ({"messages": [{"role": "king", "content": "hello"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"stream": "true"}, "invalid_type", "stream"),
    ({"temperature": "1"}, "invalid_type", "temperature"),
    ({"temperature": 3}, "invalid_value", "temperature"),
    ({"max_tokens": 1.5}, "invalid_type", "max_tokens"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"n": True}, "invalid_type", "n"),
    ({"n": 1_000}, "invalid_value", "n"),
]


@BOTH_WAYS
@pytest.mark.parametrize(("change", "code", "param"), WRONG, ids=[str(change) for change, _, _ in WRONG])
def test_a_wrong_parameter_is_named(
    client: Client, change: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    body = {"model": "five", "messages": HELLO, "stream": stream, **change}
    answer = client.send("POST", CHAT, json.dumps(body).encode())
    assert error_of(answer) == (400, "invalid_request_error", code, param)


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_parameter_is_named(client: Client, missing: str) -> None:
    body = {"model": "five", "messages": HELLO}
    del body[missing]
    answer = client.send("POST", CHAT, json.dumps(body).encode())
    assert error_of(answer) == (400, "invalid_request_error", "missing_required_parameter", missing)


def test_an_unknown_dialect_is_400(client: Client) -> None:
    assert error_of(client.complete("five", header="klingon")) == (
        400,
        "invalid_request_error",
        "unknown_dialect",
        None,
    )


# ---- 401


def test_every_reason_to_refuse_a_key_sounds_the_same(client: Client, keys: dict[str, str]) -> None:
    unknown = api_keys.generate(is_test=False)
    mistyped = client.key[:-1] + ("a" if client.key[-1] != "a" else "b")
    refused = [
        "x",
        mistyped,
        unknown,
        *(keys[name] for name in ("revoked", "expired", "closed project", "closed organization")),
    ]
    answers = [client.send("POST", CHAT, GOOD, authorization=f"Bearer {key}") for key in refused]
    assert {error_of(answer) for answer in answers} == {
        (401, "invalid_request_error", "invalid_api_key", None)
    }
    assert {answer.error["message"].partition(" Send")[0] for answer in answers} == {
        "Incorrect API key provided."
    }
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}


def test_a_request_without_a_key_is_refused(client: Client) -> None:
    headers = [None, "", "Bearer", "Bearer ", f"Basic {client.key}", client.key]
    answers = [client.send("POST", CHAT, GOOD, authorization=header) for header in headers]
    assert {error_of(answer) for answer in answers} == {
        (401, "invalid_request_error", "invalid_api_key", None)
    }
    assert {answer.error["message"] for answer in answers} == {
        "No API key was sent. Send a valid key as 'Authorization: Bearer <key>' or 'x-api-key: <key>'."
    }
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}


def test_another_method_of_a_response_is_405_and_the_answer_names_both_right_ones(client: Client) -> None:
    answer = client.send("PUT", "/v1/responses/resp_00000000000070008000000000000000")
    assert error_of(answer) == (405, "invalid_request_error", "method_not_allowed", None)
    assert answer.headers["allow"] == "GET, DELETE"
    assert "Use GET or DELETE." in answer.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/five", "/v1/key", "/v1/generations/chatcmpl-0"])
def test_the_routes_that_read_refuse_with_the_same_body(client: Client, path: str) -> None:
    hot = client.send("POST", CHAT, GOOD, authorization="Bearer x")
    assert client.send("GET", path, authorization="Bearer x").body == hot.body


ANY_ROUTE = [
    ("POST", CHAT), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/key"),
    ("GET", "/v1/generations/chatcmpl-0"), ("GET", "/v1/generations/chatcmpl-0/stream"),
    ("GET", "/v1/organization/costs"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ANY_ROUTE)
def test_every_route_takes_a_key_in_either_header(client: Client, method: str, path: str) -> None:
    bearer = client.send(method, path, b"{}")
    assert bearer.status != 401
    for authorization in (None, f"Bearer {client.key}"):
        same = client.send(method, path, b"{}", authorization=authorization, x_api_key=client.key)
        assert same.body == bearer.body or bearer.status == 200
    different = client.send(method, path, b"{}", x_api_key=client.key + "x")
    assert error_of(different) == (400, "invalid_request_error", "ambiguous_api_key", "x-api-key")


def test_the_key_is_asked_for_before_the_body_is_judged(client: Client) -> None:
    assert client.send("POST", CHAT, b"{", authorization=None).status == 401


# ---- 404, 405, 413, 415


@BOTH_WAYS
@pytest.mark.parametrize("dialect", ["", "openai"])
def test_an_unknown_model_is_404(client: Client, stream: bool, dialect: str) -> None:
    answer = client.complete("gpt-99", dialect=dialect, stream=stream)
    assert error_of(answer) == (404, "invalid_request_error", "model_not_found", "model")
    assert "gpt-99" in answer.error["message"]


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/openai/v1/nothing", "/v1/chat/completions/", "/v1/", "/v1/chat"]
)
def test_an_unknown_route_is_404(client: Client, path: str) -> None:
    assert error_of(client.send("POST", path, GOOD)) == (404, "invalid_request_error", "unknown_url", None)


@pytest.mark.parametrize("generation_id", ["chatcmpl-00000000000070008000000000000000", "nonsense", "%00"])
def test_an_unknown_generation_is_404(client: Client, generation_id: str) -> None:
    assert error_of(client.send("GET", f"/v1/generations/{generation_id}"))[:3] == (
        404,
        "invalid_request_error",
        "generation_not_found",
    )


def test_a_strangers_generation_is_as_unknown_as_none(
    client: Client, installation: Installation, keys: dict[str, str]
) -> None:
    stranger = Client(installation.url, keys["stranger"])
    path = f"/v1/generations/{client.complete('five').json['id']}"
    assert client.send("GET", path).status == 200
    assert (
        stranger.send("GET", path).body
        == stranger.send("GET", "/v1/generations/chatcmpl-00000000000070008000000000000000").body
    )


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_another_method_is_405_and_the_answer_names_the_right_one(client: Client, method: str) -> None:
    answer = client.send(method, CHAT)
    assert error_of(answer) == (405, "invalid_request_error", "method_not_allowed", None)
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/five", "/v1/key", "/openai/v1/models"])
def test_the_routes_that_read_refuse_a_post(client: Client, path: str) -> None:
    answer = client.send("POST", path, b"{}")
    assert error_of(answer) == (405, "invalid_request_error", "method_not_allowed", None)
    assert "GET" in answer.headers["allow"]


def test_a_body_over_the_cap_is_413(client: Client) -> None:
    answer = client.send("POST", CHAT, b" " * (8 * 1024 * 1024 + 1))
    assert error_of(answer) == (413, "invalid_request_error", "request_too_large", None)


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"],
)
def test_another_content_type_is_415(client: Client, content_type: str | None) -> None:
    answer = client.send("POST", CHAT, GOOD, content_type=content_type)
    assert error_of(answer) == (415, "invalid_request_error", "unsupported_media_type", None)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_by_any_spelling_is_taken(client: Client, content_type: str) -> None:
    assert client.send("POST", CHAT, GOOD, content_type=content_type).status == 200


# ---- what the upstream says

UPSTREAM = {
    "status-400": (400, "invalid_request_error", "bad_temperature", None),
    "status-400-page": (400, "invalid_request_error", "bad_request", None),
    "status-400-context": (400, "invalid_request_error", "context_length_exceeded", None),
    "status-401": (502, "server_error", "upstream_authentication", None),
    "status-403": (502, "server_error", "upstream_authentication", None),
    "status-404": (502, "server_error", "upstream_model_not_found", None),
    "status-413": (413, "invalid_request_error", "request_too_large", None),
    "status-429": (429, "rate_limit_error", "upstream_rate_limited", None),
    "status-500": (502, "server_error", "upstream_error", None),
    "status-503": (503, "server_error", "upstream_unavailable", None),
    "html-200": (502, "server_error", "upstream_invalid_response", None),
    "html-502": (502, "server_error", "upstream_error", None),
    "redirects": (502, "server_error", "upstream_invalid_response", None),
    "says-nothing": (502, "server_error", "upstream_disconnected", None),
}


@BOTH_WAYS
@pytest.mark.parametrize("model", UPSTREAM)
def test_an_upstreams_refusal_has_its_own_status(
    client: Client, installation: Installation, model: str, stream: bool
) -> None:
    answer = client.complete(model, stream=stream)
    assert error_of(answer) == UPSTREAM[model]
    for secret in (
        b"nginx",
        b"db-internal",
        b"10.0.0.7",
        b"<html",
        b"sk-upstreamsecret",
        b"Traceback",
        installation.upstream_url.encode(),
    ):
        assert secret not in answer.body
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert (receipt["outcome"], receipt["amount_nanodollars"], receipt["usage_source"]) == (
        "failed",
        0,
        "none",
    )
    # What an upstream says about a wrong request may quote it: only its client gets that.
    kept = "The request was refused." if answer.status == 400 else answer.error["message"]
    assert receipt["error"] == {"code": answer.error["code"], "message": kept}


@pytest.mark.parametrize("model", UPSTREAM)
def test_llama_has_a_status_for_what_an_upstream_refuses(client: Client, model: str) -> None:
    """Its event of a stream that is invalid is for what this service finds."""
    assert error_of(client.complete(model, stream=True, dialect="llama")) == UPSTREAM[model]


@BOTH_WAYS
def test_an_upstreams_retry_after_is_passed_on(client: Client, stream: bool) -> None:
    headers = client.complete("status-429", stream=stream).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("7", "7000")
    headers = client.complete("status-503", stream=stream).headers
    assert "retry-after" not in headers, "this upstream sends none"


def test_an_upstream_that_never_begins_is_504(client: Client, installation: Installation) -> None:
    with client.asking("never-begins", stream=True) as streaming, client.asking("never-begins") as waiting:
        answers = [streaming.read(), waiting.read()]
    for answer in answers:
        assert error_of(answer) == (504, "server_error", "upstream_timeout", None)
        assert installation.receipt(answer.headers["x-generation-id"])["amount_nanodollars"] == 0


def test_a_stall_after_some_tokens_is_504_for_an_answer_in_one_piece(client: Client) -> None:
    assert error_of(client.complete("three-then-silence")) == (504, "server_error", "upstream_timeout", None)


# ---- x-request-id


def test_every_answer_has_a_request_id_of_its_own(client: Client) -> None:
    answers = [
        client.complete("five"),
        client.complete("five", stream=True),
        client.complete("gpt-99"),
        client.complete("status-500"),
        client.send("POST", CHAT, b"{"),
        client.send("POST", CHAT, GOOD, authorization=None),
        client.send("POST", CHAT, GOOD, content_type="text/plain"),
        client.send("POST", CHAT, b" " * (8 * 1024 * 1024 + 1)),
        client.send("GET", CHAT),
        client.send("GET", "/v1/models"),
        client.send("GET", "/v1/nothing"),
        client.send("GET", "/nothing"),
        client.send("GET", "/healthz"),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(ids)
    assert len(set(ids)) == len(answers)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing"])
@pytest.mark.parametrize("wish", ["abc", "a" * 64, "550e8400-e29b-41d4-a716-446655440000", "req_1"])
def test_a_harmless_request_id_is_echoed(client: Client, path: str, wish: str) -> None:
    assert client.send("POST", path, GOOD, x_request_id=wish).headers["x-request-id"] == wish


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing"])
@pytest.mark.parametrize("wish", ["", "a" * 65, "a b", "<script>", "a;b", "é", "a,b"])
def test_any_other_request_id_is_replaced(client: Client, path: str, wish: str) -> None:
    assert client.send("POST", path, GOOD, x_request_id=wish).headers["x-request-id"].startswith("req_")
