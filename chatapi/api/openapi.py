"""`GET /openapi.json`: the OpenAPI document, from the `openapi_*` modules beside this one."""

from functools import cache
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from accounts.models import KeyScope
from chatapi.api.openapi_operations import key_scheme
from chatapi.api.openapi_routes import paths
from chatapi.api.openapi_schemas import all_schemas
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import all_key_headers

_SCOPES = "\n".join(f"- `{scope.value}`: {scope.label.partition(' – ')[2]}" for scope in KeyScope)
_PREFIXES = ", ".join(f"`/{name}/v1`" for name in DIALECTS)
DESCRIPTION = f"""Hosts chat completions for many tenants and accounts for every token.

Use any OpenAI client: set its base URL to `/openai/v1` here and its API key to yours. The same routes under
{_PREFIXES} answer in that dialect, as they do with the
header `X-ChatAPI-Dialect`; under `/v1` they answer in the key's or the server's default. Test keys
(`ck_test_…`) reach only the sandbox engine and cost nothing.

A key can be narrowed to some models and to some of these scopes:

{_SCOPES}"""


@csrf_exempt  # other methods get 405, not 403 for a missing CSRF token
@require_safe
def document(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_document(), content_type="application/json")


@cache
def _document() -> bytes:
    return msgspec.json.encode(content())


@cache
def content() -> dict[str, Any]:
    """Return the document. It is shared, so callers must not change it."""
    keys = {key_scheme(name): _key_in(name, scheme) for name, scheme in all_key_headers().items()}
    return {
        "openapi": "3.1.0",
        "servers": [{"url": settings.PATH_PREFIX or "/"}],
        "info": {"title": "chatapi", "version": "1", "description": DESCRIPTION},
        "paths": paths(),
        "components": {"securitySchemes": keys, "schemas": all_schemas()},
    }


def _key_in(header: str, scheme: str) -> dict[str, str]:
    """Describe a key in this header. OpenAPI can express a scheme before the key only in `Authorization`."""
    about = "An API key: `ck_live_…` or `ck_test_…`."
    if header.lower() == "authorization":
        return {"type": "http", "scheme": scheme.lower(), "description": about}
    described = f"`{scheme} ` and then a key. {about}" if scheme else about
    return {"type": "apiKey", "in": "header", "name": header, "description": described}
