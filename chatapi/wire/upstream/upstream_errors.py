"""Translates an upstream's errors into those that our client gets.

    fault of            upstream says                          client gets
    by its words        quota, rate limit too small,           503 503 400, a fixed sentence, whatever the
                        content refused                        status
    the request         400 404 409 413 422, JSON envelope;    the same kind, their message made harmless
                        400 422, FastAPI's `detail`
    the deployment      401 403, unknown model, 3xx, no JSON   502, a fixed sentence
    the upstream        424 429 498, 5xx, in-band errors       429 502 503, a fixed sentence

Fixed sentences because an upstream's own words about its insides (paths, hosts, organizations, HTML) are not
our client's.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from chatapi.wire.deltas import Failed
from chatapi.wire.upstream import words

REQUEST_REFUSED = "The upstream refused the request."
REQUEST_TOO_LARGE = "The request is too large for the upstream."
MAX_RETRY_AFTER_MS = 24 * 3600 * 1000
_MAX_READ_CHARACTERS = 4 * words.MAX_MESSAGE_CHARACTERS

AUTHENTICATION = Failed(
    "The upstream refused this server's credentials.", code="upstream_authentication", status=502
)
NO_CREDENTIALS = Failed(
    "This server has no credentials for the upstream.", code="upstream_credentials_missing", status=502
)
MODEL_NOT_FOUND = Failed("The upstream does not know the model.", code="upstream_model_not_found", status=502)
INVALID_RESPONSE = Failed(
    "The upstream's answer could not be understood.", code="upstream_invalid_response", status=502
)
UPSTREAM_FAILED = Failed("The upstream failed.", code="upstream_error", status=502)
DISCONNECTED = Failed(
    "The upstream closed the connection before the end.", code="upstream_disconnected", status=502
)
UNAVAILABLE = Failed("The upstream is overloaded or down.", code="upstream_unavailable", status=503)
UNREACHABLE = Failed("The upstream could not be reached.", code="upstream_unreachable", status=503)
QUOTA_EXHAUSTED = Failed(
    "The upstream's quota for this server is used up.", code="upstream_quota_exhausted", status=503
)
QUOTA_TOO_SMALL = Failed(
    "The request needs more tokens than the upstream's rate limit for this server ever allows.",
    code="upstream_quota_too_small",
    status=503,
)
TIMED_OUT = Failed("The upstream took too long.", code="upstream_timeout", status=504)
# For the client of the stopped request; a chatapi that is another one's upstream passes it on. SDKs do not
# repeat a request by themselves after this status.
STOPPED = Failed(
    "An operator or a member of the organization stopped this request. What was generated is charged; see "
    "the receipt.",
    code="stopped_by_operator",
    status=403,
)
CONTENT_REFUSED = Failed(
    "The upstream refused the request because of its content.",
    "invalid_request_error",
    code="content_filter",
    status=400,
)
RATE_LIMITED = Failed(
    "The upstream is rate limited.", type="rate_limit_error", code="upstream_rate_limited", status=429
)

# After these failures the same upstream may answer the next attempt: it has a bad moment, and the request and
# our settings are not at fault.
TRANSIENT = frozenset(
    failure.code
    for failure in (UPSTREAM_FAILED, DISCONNECTED, UNAVAILABLE, UNREACHABLE, TIMED_OUT, RATE_LIMITED)
)
# With these an upstream says that it takes no request at all for a while.
NOT_NOW = frozenset(failure.code for failure in (UNAVAILABLE, UNREACHABLE, RATE_LIMITED))

_BY_STATUS = {
    401: AUTHENTICATION,
    402: QUOTA_EXHAUSTED,
    403: AUTHENTICATION,
    408: TIMED_OUT,
    # Of TGI and Bedrock: the model failed.
    424: UPSTREAM_FAILED,
    429: RATE_LIMITED,
    # Groq's: its flex tier is full.
    498: UPSTREAM_FAILED,
    500: UPSTREAM_FAILED,
    502: UPSTREAM_FAILED,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
    # Anthropic's "overloaded".
    529: UNAVAILABLE,
}
# An error in mid-stream has no status of its own; its type stands for one. In lower case, as vLLM writes
# class names.
_STATUS_BY_TYPE = {
    "authentication_error": 401,
    "badrequesterror": 400,
    "insufficient_quota": 402,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "notfounderror": 404,
    "overloaded": 503,
    "overloaded_error": 503,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "template_error": 422,
    "tool_error": 422,
    "validation": 422,
}
# With these an upstream speaks of the request, so the client may read its words.
_REQUEST_FAULTS = frozenset({400, 404, 409, 422})

# There is no common code for it; these are the words of OpenAI, vLLM, llama-server, Ollama, Anthropic, xAI,
# Gemini and TGI.
_CONTEXT_LENGTH = re.compile(
    r"""context[ _](?:length|size|window|overflow) | exceeds?\ (?:the\ )?(?:available\ )?context
      | prompt\ is\ too\ long | maximum\ (?:model|prompt)\ length
      | input\ token\ count\b.*\bexceeds | `inputs`\ tokens\b.*\bmust\ be\ <=""",
    re.I | re.X,
)
_UNKNOWN_MODEL = re.compile(
    r"""\bmodels?\b.*(?:not\ found|does\ ?n.t\ exist|not\ exist) | (?:unknown|invalid|no\ such)\ model
      | model_not_(?:found|available) | model_decommissioned | DeploymentNotFound
      | not_found_error\ .*\bmodel:  # Anthropic
      | not\ a\ valid\ model | no\ endpoints\ found\ for\b  # OpenRouter""",
    re.I | re.X,
)
# What an upstream says with these words is clear, whatever its status.
_BY_WORDS = (
    # OpenAI's codes, with 429 or 400, and Anthropic's words, with 400, about our account. No waiting helps,
    # and no other request: it must not look like a rate limit or the request's fault.
    (
        re.compile(
            r"""insufficient_quota | billing_(?:hard_limit_reached|not_active)
              | credit\ balance\ is\ too\ low | reached\ your\ specified\ api\ usage\ limits""",
            re.I | re.X,
        ),
        QUOTA_EXHAUSTED,
    ),
    # OpenAI's words, with 429, and Groq's, with 413, for a request that is larger than the whole rate limit.
    # No waiting helps, but another account may allow more.
    (re.compile(r"request too large .*\bper (?:min|day)", re.I), QUOTA_TOO_SMALL),
    # xAI's words, with 403; its message also names our account and key.
    (re.compile(r"\bcontent violates usage guidelines", re.I), CONTENT_REFUSED),
)
# A message about our key, with any status: no client may read it.
_API_KEY = re.compile(r"\bapi[ _-]?key", re.I)


class UpstreamError(Exception):
    """The upstream refused, failed, or broke its protocol; `failure` is for our client."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Complaint(msgspec.Struct, frozen=True):
    """What an upstream says in an error object, whichever of the known shapes it has."""

    message: str
    type: str = ""
    code: str | int | None = None
    param: str | None = None


def complaint_in(document: object) -> Complaint | None:
    """The complaint in a decoded JSON document, or None where it is not an error envelope.

    Knows `{"error": {...}}` and a list of it (Gemini), `{"error": "..."}`, also with an `error_type` (TGI),
    and the flat `{"message": ..., "type": ...}` of vLLM and the llama dialect, whose message may be FastAPI's
    refusal (Mistral).
    """
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return None
    # Without `error` the document itself may be the error.
    error = document.get("error", document)
    if isinstance(error, str):
        error = {"message": error, "type": document.get("error_type")}
    if not isinstance(error, dict):
        return None
    message = error.get("message")
    if isinstance(message, dict):
        message = _detail_in(message)
    return _complaint(error, message) if isinstance(message, str) else None


def failure_of_complaint(complaint: Complaint | None) -> Failed:
    """Return the failure for an error object inside a stream or under status 200."""
    if complaint is None:
        return UPSTREAM_FAILED
    code = str(complaint.code).lower()
    # vLLM and llama-server put the HTTP status here, LiteLLM as text.
    if re.fullmatch("[45][0-9]{2}", code):
        status = int(code)
    else:
        status = _STATUS_BY_TYPE.get(code) or _STATUS_BY_TYPE.get(complaint.type.lower(), 500)
    return _classify(status, complaint)


def failure_of_status(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Failed:
    """Return the failure for an answer that is no 200; of the upstream's headers, only the wait counts."""
    document = _decoded(body)
    complaint = complaint_in(document)
    if complaint is None and status in (400, 422) and (detail := _detail_in(document)):
        complaint = Complaint(detail[:_MAX_READ_CHARACTERS])
    failure = _classify(status, complaint)
    if failure is RATE_LIMITED or failure is UNAVAILABLE:
        return msgspec.structs.replace(failure, retry_after_ms=retry_after_ms(headers or {}))
    return failure


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """Return the wait before the next try: OpenAI's `retry-after-ms`, else `Retry-After`, in seconds or as a
    date (RFC 9110, 10.2.3).

    None when absent or nonsense. `headers` finds names in any case, as an HTTP client's do.
    """
    # OpenAI sends both; the first is exact.
    milliseconds, header = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    try:
        wait_ms = float(milliseconds) if milliseconds[:1].isdigit() else _seconds(header) * 1000
    except (ValueError, TypeError, OverflowError):
        return None
    # A date may be past, and an upstream may ask for days, which no client should wait.
    return int(min(max(wait_ms, 0), MAX_RETRY_AFTER_MS))


def _classify(status: int, complaint: Complaint | None) -> Failed:
    text = "" if complaint is None else f"{complaint.type} {complaint.code} {complaint.message}"
    for pattern, failure in _BY_WORDS:
        if pattern.search(text):
            return failure
    # Before the other words: proxies answer it with a page of their own.
    if status == 413:
        return Failed(REQUEST_TOO_LARGE, "invalid_request_error", "request_too_large", status=413)
    if complaint is not None:
        # From another chatapi, where an operator stopped it: it must not be tried elsewhere.
        if complaint.code == STOPPED.code:
            return STOPPED
        # A rate limit also speaks of tokens and context.
        if status != 429 and _CONTEXT_LENGTH.search(text):
            return _refused(complaint, code="context_length_exceeded")
        if status in _REQUEST_FAULTS:
            return _request_fault(complaint, text)
    return _BY_STATUS.get(status, UPSTREAM_FAILED if status >= 500 else INVALID_RESPONSE)


def _request_fault(complaint: Complaint, text: str) -> Failed:
    """A 4xx that speaks of the request: unless it is our deployment that is wrong, the client may read it."""
    # In this order: a key's message may also name the model.
    if _API_KEY.search(text):
        return AUTHENTICATION
    if _UNKNOWN_MODEL.search(text):
        return MODEL_NOT_FOUND
    return _refused(complaint, code=words.code(complaint.code))


def _refused(complaint: Complaint, *, code: str | None) -> Failed:
    message = words.harmless(complaint.message) or REQUEST_REFUSED
    return Failed(message, "invalid_request_error", code, words.parameter(complaint.param), status=400)


def _complaint(error: dict[str, Any], message: str) -> Complaint:
    kind, code, param = error.get("type"), error.get("code"), error.get("param")
    if code is None and isinstance(details := error.get("details"), dict):
        code = details.get("error_code")  # Anthropic's
    return Complaint(
        message[:_MAX_READ_CHARACTERS],
        kind if isinstance(kind, str) else "",
        code if isinstance(code, str | int) else None,
        param if isinstance(param, str) else None,
    )


def _detail_in(document: object) -> str | None:
    """Return FastAPI's refusal of a request: `{"detail": "..."}`, or a list of mistakes with `msg`."""
    detail = document.get("detail") if isinstance(document, dict) else None
    if isinstance(detail, list):
        detail = "; ".join([str(each["msg"]) for each in detail if isinstance(each, dict) and "msg" in each])
    return detail if isinstance(detail, str) and detail else None


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _seconds(header: str) -> float:
    if header[:1].isdigit():
        return float(header)
    moment = parsedate_to_datetime(header)
    # "-0000" is UTC without a zone, in Python's reading.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime.now(UTC)).total_seconds()
