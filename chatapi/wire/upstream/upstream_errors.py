"""Translates an upstream's errors into those that the client gets. The first row that fits counts:

    upstream sends                                            client gets
    words: quota, rate limit too small, content refused       503 503 400, a fixed sentence
    413                                                       413, a fixed sentence
    code: `stopped_by_operator`, from another chatapi         403, a fixed sentence
    words: context too long, unless the status is 429         400, the message without hidden words
    400 404 409 422 with words about our key or the model     502, a fixed sentence
    400 404 409 422 with an error object,                     400, the message without hidden words
    400 422 with FastAPI's `detail`
    402 408 424 429 498 5xx                                   503 504 502 429 502 502 or 503, a fixed sentence
    401 403, 3xx, all others                                  502, a fixed sentence

An error inside a stream has the status that its code or type stands for. Sentences are fixed because an
upstream's message may reveal internals: paths, hosts, organizations, HTML.
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
# For the client of a stopped request, also if the upstream is another chatapi, where it was stopped. SDKs do
# not repeat a request by themselves after this status.
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

# After these failures the same upstream may answer the next attempt: neither the request nor our settings are
# at fault.
TRANSIENT = frozenset(
    failure.code
    for failure in (UPSTREAM_FAILED, DISCONNECTED, UNAVAILABLE, UNREACHABLE, TIMED_OUT, RATE_LIMITED)
)
# These mean that the upstream takes no requests for a while.
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
# An error in mid-stream has no status, so its code or type stands for one. In lower case: vLLM's types are
# names of classes.
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
# Errors with these statuses are about the request, so the client may read the message.
_REQUEST_FAULTS = frozenset({400, 404, 409, 422})

# There is no common code for a full context; these are the words of OpenAI, vLLM, llama-server, Ollama,
# Anthropic, xAI, Gemini and TGI.
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
# These words are clear with any status.
_BY_WORDS = (
    # OpenAI's codes, with 429 or 400, and Anthropic's words, with 400, about our account. Neither waiting nor
    # another request helps, so it must not look like a rate limit or a fault of the request.
    (
        re.compile(
            r"""insufficient_quota | billing_(?:hard_limit_reached|not_active)
              | credit\ balance\ is\ too\ low | reached\ your\ specified\ api\ usage\ limits""",
            re.I | re.X,
        ),
        QUOTA_EXHAUSTED,
    ),
    # OpenAI's words, with 429, and Groq's, with 413, for a request that is larger than the whole rate limit.
    # Waiting does not help, but another account may allow more.
    (re.compile(r"request too large .*\bper (?:min|day)", re.I), QUOTA_TOO_SMALL),
    # xAI's words, with 403; its message also names our account and key.
    (re.compile(r"\bcontent violates usage guidelines", re.I), CONTENT_REFUSED),
)
# Anthropic's errors have no `param`; many of their messages begin with a path.
_ANTHROPICS_PATH = re.compile(
    r"""(messages|max_tokens|temperature|top_[pk]|tools|tool_choice|stop_sequences|thinking
      |output_config\.(?:effort|format)) (?:\.[\w.]*)?:\ """,
    re.X,
)
_OPENAIS_NAMES = {
    "output_config.effort": "reasoning_effort",
    "output_config.format": "response_format",
    "stop_sequences": "stop",
}
# A member in FastAPI's paths, which also have names of classes and types.
_MEMBER = re.compile("(?!(?:str|int|float|bool|bytes|list|dict|none)$)[a-z][a-z0-9_]*")
# A message about our key, which no client may read.
_API_KEY = re.compile(r"\bapi[ _-]?key", re.I)


class UpstreamError(Exception):
    """The upstream refused, failed, or broke its protocol; `failure` is for clients, `cause` for the log."""

    def __init__(self, failure: Failed, cause: str = "") -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.cause = cause


class Complaint(msgspec.Struct, frozen=True):
    """An upstream's error object, read from any of the known shapes."""

    message: str
    type: str = ""
    code: str | int | None = None
    param: str | None = None


def complaint_in(document: object) -> Complaint | None:
    """Return the complaint in a decoded JSON document, or None if it is no error envelope.

    Known are `{"error": {...}}` and a list of it (Gemini), `{"error": "..."}`, also with `error_type` (TGI),
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
    message, param = error.get("message"), None
    if isinstance(message, dict) and (detail := _detail_in(message)):
        message, param = detail.message, detail.param
    return _complaint(error, message, param) if isinstance(message, str) else None


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
    """Return the failure for an answer that is no 200; see `retry_after_ms` for the headers."""
    document = _decoded(body)
    complaint = complaint_in(document)
    if complaint is None and status in (400, 422):
        complaint = _detail_in(document)
    failure = _classify(status, complaint)
    if failure is RATE_LIMITED or failure is UNAVAILABLE:
        return msgspec.structs.replace(failure, retry_after_ms=retry_after_ms(headers or {}))
    return failure


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """Return the wait before the next attempt: OpenAI's `retry-after-ms`, else `Retry-After`, in seconds or
    as a date (RFC 9110, 10.2.3). None if it is absent or invalid.

    `headers` must find names in any case, as an HTTP client's headers do.
    """
    # OpenAI sends both; the one in milliseconds is exact.
    milliseconds, header = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    try:
        wait_ms = float(milliseconds) if milliseconds[:1].isdigit() else _seconds(header) * 1000
    except (ValueError, TypeError, OverflowError):
        return None
    # A date may be past, and an upstream may ask for days: too long for any client.
    return int(min(max(wait_ms, 0), MAX_RETRY_AFTER_MS))


def _classify(status: int, complaint: Complaint | None) -> Failed:
    text = "" if complaint is None else f"{complaint.type} {complaint.code} {complaint.message}"
    for pattern, failure in _BY_WORDS:
        if pattern.search(text):
            return failure
    # Before the other checks: a proxy may send a 413, with a page of its own.
    if status == 413:
        return Failed(REQUEST_TOO_LARGE, "invalid_request_error", "request_too_large", status=413)
    if complaint is not None:
        # An operator of another chatapi stopped the request: it must not be tried elsewhere.
        if complaint.code == STOPPED.code:
            return STOPPED
        # A rate limit also speaks of tokens and context.
        if status != 429 and _CONTEXT_LENGTH.search(text):
            return _refused(complaint, code="context_length_exceeded")
        if status in _REQUEST_FAULTS:
            return _request_fault(complaint, text)
    return _BY_STATUS.get(status, UPSTREAM_FAILED if status >= 500 else INVALID_RESPONSE)


def _request_fault(complaint: Complaint, text: str) -> Failed:
    """Return the failure for a 4xx about the request; the client may not read one about our key or model."""
    # In this order: a key's message may also name the model.
    if _API_KEY.search(text):
        return AUTHENTICATION
    if _UNKNOWN_MODEL.search(text):
        return MODEL_NOT_FOUND
    return _refused(complaint, code=words.code(complaint.code))


def _refused(complaint: Complaint, *, code: str | None) -> Failed:
    message = words.harmless(complaint.message) or REQUEST_REFUSED
    param = words.parameter(complaint.param) or _first_parameter(complaint.message)
    return Failed(message, "invalid_request_error", code, param, status=400)


def _first_parameter(message: str) -> str | None:
    """Return the parameter with which a message of Anthropic's begins, by OpenAI's name."""
    found = _ANTHROPICS_PATH.match(message)
    return found and _OPENAIS_NAMES.get(found[1], found[1])


def _complaint(error: dict[str, Any], message: str, place: str | None) -> Complaint:
    """`place`: the parameter, if the error has no `param`."""
    kind, code, param = error.get("type"), error.get("code"), error.get("param")
    if code is None and isinstance(details := error.get("details"), dict):
        code = details.get("error_code")  # Anthropic's
    return Complaint(
        message[:_MAX_READ_CHARACTERS],
        kind if isinstance(kind, str) else "",
        code if isinstance(code, str | int) else None,
        param if isinstance(param, str) else place,
    )


def _detail_in(document: object) -> Complaint | None:
    """Return FastAPI's refusal of a request: `{"detail": "..."}`, or a list of mistakes with `msg` and `loc`.

    The place of the first one is the parameter.
    """
    detail = document.get("detail") if isinstance(document, dict) else None
    param = None
    if isinstance(detail, list):
        mistakes = [each for each in detail if isinstance(each, dict) and "msg" in each]
        places = [_place(each.get("loc")) for each in mistakes]
        texts = (
            f"{place}: {each['msg']}" if place else str(each["msg"])
            for place, each in zip(places, mistakes, strict=True)
        )
        detail, param = "; ".join(texts), next(filter(None, places), None)
    return (
        Complaint(detail[:_MAX_READ_CHARACTERS], param=param) if isinstance(detail, str) and detail else None
    )


def _place(loc: object) -> str | None:
    """Return the path of a mistake, up to the name of a type in a union; None if it is not in the body."""
    first, *rest = loc if isinstance(loc, list) and loc else [None]
    path = ""
    for step in rest if first == "body" else ():
        if isinstance(step, int):
            path += f"[{step}]"
        elif isinstance(step, str) and _MEMBER.fullmatch(step):
            path += f".{step}" if path else step
        else:
            break
    return path or None


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
