"""The organization's routes, for admin keys: its usage and its costs in OpenAI's shapes (its API reference,
"Usage" and "Costs").

Buckets are minutes, hours and days of UTC; usage is counted when it is settled, as in the ledger. A dimension
that is not grouped by is null, and a bucket in which nothing was used has no results.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.urls import path
from msgspec import Struct
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.authentication import Caller
from accounts.errors import PermissionDenied
from accounts.models import KeyScope
from chatapi.api import organization_query
from chatapi.api.organization_answers import (
    Amount,
    CompletionsUsage,
    Cost,
    CostBucket,
    CostPage,
    UsageBucket,
    UsagePage,
)
from chatapi.api.organization_query import COMPLETIONS, COSTS, Asked, Offer
from chatapi.api.views import ClientRoute
from usage.database.clock import database_now
from usage.insights import buckets
from usage.insights.buckets import Bucket, Sums
from usage.pricing import NANODOLLARS


class OrganizationRoute(ClientRoute):
    """A route about all of the caller's organization: for its admin keys only."""

    required_scope = KeyScope.USAGE

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse keys that are not an admin's, after the method and the key itself."""
        super().initial(request, *args, **kwargs)
        if not _caller(request).is_admin:
            raise PermissionDenied(
                "This needs an admin key of your organization: one made with `createkey --admin`."
            )


class Completions(OrganizationRoute):
    """`GET /v1/organization/usage/completions`."""

    def get(self, request: Request) -> Response:
        """Tokens and requests by bucket and group."""
        asked, found = _read(request, COMPLETIONS)
        data = [
            UsageBucket(
                start_time=_unix(bucket.start),
                end_time=_unix(bucket.end),
                results=[_usage(sums, asked) for sums in bucket.sums],
            )
            for bucket in found
        ]
        return _answer(UsagePage(data=data, **_next(asked, found)))


class Costs(OrganizationRoute):
    """`GET /v1/organization/costs`."""

    def get(self, request: Request) -> Response:
        """Money by day and group."""
        asked, found = _read(request, COSTS)
        data = [
            CostBucket(
                start_time=_unix(bucket.start),
                end_time=_unix(bucket.end),
                results=[_cost(sums, asked) for sums in bucket.sums],
            )
            for bucket in found
        ]
        return _answer(CostPage(data=data, **_next(asked, found)))


routes = [
    path("organization/usage/completions", Completions.as_view()),
    path("organization/costs", Costs.as_view()),
]


def _read(request: Request, offer: Offer) -> tuple[Asked, Sequence[Bucket]]:
    organization_id = _caller(request).organization_id
    asked = organization_query.parse(request._request, organization_id, offer, database_now())
    return asked, buckets.buckets(asked.query)


def _unix(moment: datetime) -> int:
    return int(moment.timestamp())


def _next(asked: Asked, found: Sequence[Bucket]) -> dict[str, Any]:
    cursor = asked.next_page(found[-1].end) if found else None
    return {"has_more": cursor is not None, "next_page": cursor}


def _usage(sums: Sums, asked: Asked) -> CompletionsUsage:
    return CompletionsUsage(
        input_tokens=sums.prompt_tokens,
        input_cached_tokens=sums.cached_tokens,
        input_uncached_tokens=sums.prompt_tokens - sums.cached_tokens,
        output_tokens=sums.completion_tokens,
        num_model_requests=sums.requests,
        project_id=_id(sums, "project_id"),
        api_key_id=_id(sums, "api_key_id"),
        model=sums.group.get("model"),
        batch=False if "batch" in asked.groups else None,
    )


def _cost(sums: Sums, asked: Asked) -> Cost:
    by_line = "line_item" in asked.groups
    return Cost(
        amount=Amount(value=sums.amount_nanodollars / NANODOLLARS),
        line_item=sums.group.get("model"),
        project_id=_id(sums, "project_id"),
        api_key_id=_id(sums, "api_key_id"),
        quantity=sums.prompt_tokens + sums.completion_tokens if by_line else None,
        quantity_unit="tokens" if by_line else None,
    )


def _id(sums: Sums, column: str) -> str | None:
    value = sums.group.get(column)
    return None if value is None else str(value)


def _answer(page: Struct) -> Response:
    return Response(msgspec.to_builtins(page))


def _caller(request: Request) -> Caller:
    caller: object = request.user
    assert isinstance(caller, Caller), "every client route is behind APIKeyAuthentication"
    return caller
