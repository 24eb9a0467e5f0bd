"""`POST /oauth/token`: exchanges a program's own token for an access token (RFC 8693), in the form that
OpenAI's SDKs send and read.

Its errors have OAuth's form (RFC 6749, 5.2), and parameters that the RFCs do not know are ignored.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from django.conf import settings
from django.core.exceptions import BadRequest, TooManyFieldsSent
from django.http import HttpRequest, JsonResponse
from django.http.request import QueryDict
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from msgspec import Meta, Struct

from accounts import forwarding
from accounts.errors import SigningKeysUnavailable, TokenRefused, TooManyFailedAttempts
from accounts.failed_attempts import attempts
from accounts.workload_identity import exchange
from chatapi.api.management.pages import RowId
from chatapi.wire import json_guard
from chatapi.wire.invalid_request import InvalidRequest, explain
from usage.errors import is_unavailable

_MEDIA_TYPES: Final = ("application/json", "application/x-www-form-urlencoded")
# RFC 8693 has these, and a client that sends one expects an effect.
_WITHOUT_EFFECT: Final = ("resource", "audience", "scope", "actor_token", "actor_token_type")
_RETRY_S: Final = 5

log = logging.getLogger(__name__)


class _Exchange(Struct, frozen=True):
    """The request; members with other names are ignored (RFC 6749, 3.2)."""

    grant_type: Literal["urn:ietf:params:oauth:grant-type:token-exchange"]
    subject_token: Annotated[str, Meta(min_length=1, max_length=exchange.MAX_TOKEN_CHARS)]
    subject_token_type: Literal[
        "urn:ietf:params:oauth:token-type:jwt", "urn:ietf:params:oauth:token-type:id_token"
    ]
    identity_provider_id: RowId
    service_account_id: RowId
    requested_token_type: Literal["urn:ietf:params:oauth:token-type:access_token", ""] = ""


class _Refused(Exception):
    """The request is refused with an error of OAuth's."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error, self.description = error, description


@csrf_exempt
@never_cache
def exchange_token(request: HttpRequest) -> JsonResponse:
    """Answer with an access token. Refused tokens count as wrong keys of the client's IP."""
    if request.method != "POST":
        return _error(405, "invalid_request", "Use POST.", Allow="POST")
    ip = forwarding.of_meta(request.META, settings.TRUSTED_PROXIES).ip
    try:
        sent = _checked(_parameters(request))
        with attempts.counted(ip), attempts.permitted(ip, sent.subject_token):
            token = exchange.exchange(
                int(sent.identity_provider_id), int(sent.service_account_id), sent.subject_token
            )
    except _Refused as refused:
        return _error(400, refused.error, refused.description)
    except TokenRefused as refused:
        log.info("a token exchange was refused: %s", refused.detail or refused.message)
        return _error(400, "invalid_grant", refused.message)
    except TooManyFailedAttempts as error:
        text = "Too many wrong tokens or keys came from your IP address. Try again later."
        wait_s = -(-error.retry_after_ms // 1_000)
        return _error(429, "temporarily_unavailable", text, **{"Retry-After": str(wait_s)})
    except Exception as error:
        text = _outage(error)
        return _error(503, "temporarily_unavailable", text, **{"Retry-After": str(_RETRY_S)})
    return JsonResponse(
        {
            "access_token": token.text,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": token.expires_in,
        }
    )


def _outage(error: Exception) -> str:
    """Return what is unavailable. Raises the error again if it is of another kind."""
    if isinstance(error, SigningKeysUnavailable):
        return "The signing keys of the provider's issuer can't be fetched. Check its issuer, or try again."
    if not is_unavailable(error):
        raise error
    log.warning("the database is not available: %s", " ".join(str(error).split()))
    return "The service can't read its database right now. Try again."


def _parameters(request: HttpRequest) -> Mapping[str, Any]:
    """Return the parameters of a JSON body, which OpenAI's SDKs send, or of a form. Raises `_Refused`."""
    match request.content_type:
        case "application/json":
            try:
                return json_guard.decode(request.body)
            except InvalidRequest as error:
                raise _Refused("invalid_request", error.message) from None
            except msgspec.ValidationError:
                raise _Refused("invalid_request", "A number in the body is out of range.") from None
        case "application/x-www-form-urlencoded":
            try:
                form: QueryDict = request.POST
            except (BadRequest, TooManyFieldsSent):
                text = "Send a form in UTF-8, with few parameters."
                raise _Refused("invalid_request", text) from None
            if name := next((name for name, values in form.lists() if len(values) > 1), None):
                raise _Refused("invalid_request", f"Send '{name[:100]}' once.")
            return form.dict()
    raise _Refused("invalid_request", f"Send the body with one of these types: {', '.join(_MEDIA_TYPES)}.")


def _checked(sent: Mapping[str, Any]) -> _Exchange:
    """Return the parameters if they are complete and valid. Raises `_Refused`."""
    if name := next((name for name in _WITHOUT_EFFECT if sent.get(name)), None):
        text = f"'{name}' has no effect here: the federation rule decides what the access token may do."
        raise _Refused("invalid_request", text)
    try:
        return msgspec.convert(dict(sent), _Exchange)
    except msgspec.ValidationError as error:
        found = explain(error, _Exchange, dict(sent))
        is_grant = found.param == "grant_type" and bool(sent.get("grant_type"))
        raise _Refused("unsupported_grant_type" if is_grant else "invalid_request", found.message) from None


def _error(status: int, error: str, description: str, **headers: str) -> JsonResponse:
    return JsonResponse({"error": error, "error_description": description}, status=status, headers=headers)
