"""The OpenAPI document: reading routes from their views, hot routes by hand (openapi_hot_routes.py), schemas
beside them.
"""

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import msgspec
from django.http import HttpRequest, HttpResponse
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from accounts.models import KeyScope
from chatapi.api.openapi_hot_routes import OF_ALL_ROUTES, STATUSES, errors, hot_paths, tag
from chatapi.api.openapi_schemas import Schema, all_schemas, ref
from chatapi.api.reading import only_read
from chatapi.wire.dialects import DIALECTS

View = TypeVar("View", bound=Callable[..., Any])

_SCOPES = "\n".join(f"- `{scope.value}`: {scope.label.partition(' – ')[2]}" for scope in KeyScope)
_PREFIXES = ", ".join(f"`/{name}/v1`" for name in DIALECTS)
DESCRIPTION = f"""Hosts chat completions for many tenants and accounts for every token.

Use any OpenAI client: set its base URL to `/openai/v1` here and its API key to yours. The same routes under {_PREFIXES} answer in that
dialect, as they do with the header `X-ChatAPI-Dialect`; under `/v1` they answer in the key's or the server's default. Test keys
(`ck_test_…`) reach only the sandbox engine and cost nothing.

A key can be narrowed to some models and to some of these scopes:

{_SCOPES}"""


def describe(
    operation_id: str, summary: str, schema: str, *statuses: int, **parameters: str
) -> Callable[[View], View]:
    """Document a reading route: what it answers, which errors it has beside everyone's, what its path's
    parameters mean.
    """
    path = [
        OpenApiParameter(name, str, OpenApiParameter.PATH, description=meaning)
        for name, meaning in parameters.items()
    ]
    responses: dict[Any, Any] = {200: OpenApiResponse(ref(schema), description=summary)}
    responses |= {status: OpenApiResponse(ref("Error"), description=STATUSES[status]) for status in statuses}
    decorate: Callable[[View], View] = extend_schema(
        operation_id=operation_id,
        summary=summary,
        responses=responses,
        parameters=path,
        tags=[tag(operation_id)],
    )
    return decorate


class APIKeyScheme(OpenApiAuthenticationExtension):
    """How `APIKeyAuthentication` is written in the document."""

    target_class = "accounts.api.APIKeyAuthentication"
    name = "APIKey"

    def get_security_definition(self, auto_schema: Any) -> Schema:
        """HTTP bearer authentication."""
        return {"type": "http", "scheme": "bearer", "description": "An API key: `ck_live_…` or `ck_test_…`."}


_making = Lock()
"""Held while the document is made: once is enough, and drf-spectacular fails in two threads at once."""


@only_read
def document(request: HttpRequest) -> HttpResponse:
    """`GET /openapi.json`."""
    with _making:
        return HttpResponse(_document(), content_type="application/json")


@cache
def _document() -> bytes:
    """The whole document; the same for everyone until the process ends, and not cheap to make."""
    return msgspec.json.encode(SchemaGenerator().get_schema(request=None, public=True))


def only_client_routes(endpoints: list[tuple[str, str, str, Any]]) -> list[tuple[str, str, str, Any]]:
    """Leave out the dialects' prefixes, which repeat everything (drf-spectacular's preprocessing hook)."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith("/v1/")]


def add_hot_routes(result: Schema, **context: Any) -> Schema:
    """Add what does not pass through Django, what all routes share, and all schemas (drf-spectacular's
    postprocessing hook).
    """
    result["info"]["description"] = DESCRIPTION
    result["paths"] = hot_paths() | result["paths"]
    for path in result["paths"].values():
        for operation in path.values():
            operation["responses"] = dict(sorted((errors(*OF_ALL_ROUTES) | operation["responses"]).items()))
    result["components"].setdefault("schemas", {}).update(all_schemas())
    return result
