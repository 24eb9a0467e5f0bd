"""How the organization's routes are written in the OpenAPI document: from what they offer, and from the types
that they answer.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from chatapi.api.organization_query import Offer

View = TypeVar("View", bound=Callable[..., Any])
_ERRORS = {
    400: "A parameter is missing or wrong; `param` names it.",
    401: "No valid API key. The answer is the same for every reason.",
    403: "The key is not an admin key, or lacks the scope `usage`.",
}
_TEXTS = {"type": "array", "items": {"type": "string"}}


def describe(operation_id: str, summary: str, page: type, offer: Offer) -> Callable[[View], View]:
    """Document a route that answers pages of that type."""
    responses: dict[Any, Any] = {200: OpenApiResponse(_inline(page), description="Buckets, oldest first.")}
    error = {"$ref": "#/components/schemas/Error"}
    responses |= {status: OpenApiResponse(error, description=meaning) for status, meaning in _ERRORS.items()}
    decorate: Callable[[View], View] = extend_schema(
        operation_id=operation_id,
        summary=summary,
        responses=responses,
        parameters=_parameters(offer),
        tags=["organization"],
    )
    return decorate


def _parameters(offer: Offer) -> list[OpenApiParameter]:
    limits = ", ".join(
        f"`{word}`: {usual}, at most {most}" for word, (_, usual, most) in offer.widths.items()
    )
    groups = {"type": "array", "items": {"type": "string", "enum": list(offer.groups)}}
    return [
        _parameter(
            "start_time", int, "Unix seconds; the bucket that it lies in is the first one.", required=True
        ),
        _parameter("end_time", int, "Unix seconds, not included; now if it is left out."),
        _parameter(
            "bucket_width",
            {"type": "string", "enum": list(offer.widths), "default": "1d"},
            "How long a bucket is.",
        ),
        _parameter("group_by[]", groups, "Dimensions with results of their own; the others are null."),
        _parameter("project_ids[]", _TEXTS, "Only these projects."),
        _parameter("api_key_ids[]", _TEXTS, "Only these keys."),
        _parameter(f"{offer.models}[]", _TEXTS, "Only these models."),
        _parameter("limit", int, f"Buckets of a page ({limits})."),
        _parameter("page", str, "The `next_page` of the page before."),
    ]


def _parameter(name: str, kind: Any, meaning: str, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(name, kind, OpenApiParameter.QUERY, required=required, description=meaning)


def _inline(page: type) -> dict[str, Any]:
    """The type's schema in one piece."""
    (schema,), parts = msgspec.json.schema_components([page], ref_template="{name}")

    def resolve(part: Any) -> Any:
        match part:
            case {"$ref": name}:
                return resolve(parts[name])
            case dict():
                return {key: resolve(value) for key, value in part.items()}
            case list():
                return [resolve(value) for value in part]
        return part

    found: dict[str, Any] = resolve(schema)
    return found
