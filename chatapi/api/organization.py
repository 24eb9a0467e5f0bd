"""The organization's routes, for admin keys: usage and costs as in OpenAI's API reference ("Usage", "Costs").

Buckets are minutes, hours and days of UTC. Usage belongs to the time of its settlement, as in the ledger. A
dimension that `group_by` does not name is null; `end_user`, which OpenAI does not have, is left out. A bucket
without usage has no results.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from django.urls import path
from msgspec import UNSET, Meta, Struct
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.models import EndUser, KeyScope
from chatapi.api import organization_query
from chatapi.api.organization_answers import (
    Amount,
    CompletionsUsage,
    Cost,
    EmbeddingsUsage,
    Pages,
    pages_of,
)
from chatapi.api.organization_query import (
    COMPLETIONS,
    COSTS,
    UNSERVED,
    PageRequest,
    UsageRouteSpec,
    usage_spec,
)
from chatapi.api.views import ClientRoute, caller_of, respond
from chatapi.models import ModelKind, ServedModel
from usage.database.clock import database_now
from usage.insights import buckets, end_user_pages
from usage.insights.buckets import Bucket, BucketQuery, Sums
from usage.pricing import NANODOLLARS


class Report(NamedTuple):
    """A route of usage or costs: its answer, and its texts in the reference."""

    operation_id: str
    summary: str
    spec: UsageRouteSpec
    pages: Pages
    result: Callable[[Sums, PageRequest], Struct]
    """Returns the result that clients see, from the sums of one group of a bucket."""
    narrowed: Callable[[BucketQuery], BucketQuery] = lambda query: query
    """Narrows the query to the models that the report is about."""


def _but_other_models(query: BucketQuery) -> BucketQuery:
    # A model's kind never changes, so the books do not store it.
    others = [kind for kind in ModelKind if kind.has_own_usage_route]
    return replace(query, but_models=_models_of(*others))


def _usage(result: type[Struct], sums: Sums, page: PageRequest) -> Struct:
    """Return the sums as a result of this type."""
    values = {
        "input_tokens": sums.prompt_tokens,
        "input_cached_tokens": sums.cached_tokens,
        "input_cache_write_tokens": sums.cache_write_tokens,
        "input_uncached_tokens": sums.prompt_tokens - sums.cached_tokens - sums.cache_write_tokens,
        "output_tokens": sums.completion_tokens,
        "num_model_requests": sums.requests,
        "project_id": _id(sums, "project_id"),
        "api_key_id": _id(sums, "api_key_id"),
        "model": sums.group.get("model"),
        "batch": False if "batch" in page.groups else None,
    }
    return result(**{name: values[name] for name in result.__struct_fields__ if name in values})


def _only_models_of(kind: ModelKind, query: BucketQuery) -> BucketQuery:
    known = _models_of(kind)
    wanted = [name for name in known if query.models is None or name in query.models]
    return replace(query, models=tuple(wanted))


def _costs(sums: Sums, page: PageRequest) -> Cost:
    by_line = "line_item" in page.groups  # line items are models
    return Cost(
        amount=Amount(value=sums.amount_nanodollars / NANODOLLARS),
        line_item=sums.group.get("model"),
        project_id=_id(sums, "project_id"),
        api_key_id=_id(sums, "api_key_id"),
        quantity=sums.prompt_tokens + sums.completion_tokens if by_line else None,
        quantity_unit="tokens" if by_line else None,
    )


def _usage_of(kind: ModelKind, result: type[Struct], name: str) -> Report:
    """Return the report on models of this kind; `name` is a part of names in the reference."""
    return Report(
        f"listUsageOf{name}",
        f"List the organization's usage of {kind.requests} by minute, hour or day",
        usage_spec(result.__struct_fields__),
        pages_of(list[result], name),  # type: ignore[valid-type]  # a variable
        partial(_usage, result),
        partial(_only_models_of, kind),
    )


_NO_RESULTS = pages_of(
    Annotated[list[Any], Meta(max_length=0)],
    "Empty",
    bucket="One minute, hour or day of usage that the service does not have; times are Unix seconds.",
    page="Buckets without results, oldest first; `page=next_page` asks for the ones after them.",
)


def _unserved(operation_id: str, kind: str) -> Report:
    """Return an empty report, so that a client that adds up all usage routes of OpenAI's gets no 404."""
    return Report(
        operation_id, f"List the usage of {kind}, which the service does not have: buckets without results",
        UNSERVED, _NO_RESULTS, partial(_usage, CompletionsUsage), lambda query: replace(query, models=()),
    )  # fmt: skip


# By the path behind `/v1/organization/`.
REPORTS: Final = {
    "usage/completions": Report(
        "listUsageOfCompletions", "List the organization's usage by minute, hour or day",
        COMPLETIONS, pages_of(list[CompletionsUsage], "Usage"), partial(_usage, CompletionsUsage),
        _but_other_models,
    ),
    "usage/embeddings": _usage_of(ModelKind.EMBEDDINGS, EmbeddingsUsage, "Embeddings"),
    "usage/audio_speeches": _unserved("listUsageOfSpeech", "speech"),
    "usage/audio_transcriptions": _unserved("listUsageOfTranscriptions", "transcriptions"),
    "usage/code_interpreter_sessions": _unserved("listUsageOfCodeInterpreter", "code interpreter sessions"),
    "usage/decisions": _unserved("listUsageOfDecisions", "decisions"),
    "usage/file_search_calls": _unserved("listUsageOfFileSearch", "file searches"),
    "usage/images": _unserved("listUsageOfImages", "images"),
    "usage/moderations": _unserved("listUsageOfModerations", "moderations"),
    "usage/vector_stores": _unserved("listUsageOfVectorStores", "vector stores"),
    "usage/web_search_calls": _unserved("listUsageOfWebSearches", "web searches"),
    "costs": Report(
        "listCosts", "List the organization's costs by day", COSTS,
        pages_of(
            list[Cost], "Cost", bucket="One day; times are Unix seconds, `end_time` is not included."
        ),
        _costs,
    ),
}  # fmt: skip


class OrganizationRoute(ClientRoute):
    """A route that answers pages of buckets."""

    required_scope = KeyScope.USAGE
    needs_admin_key = True
    report: Report = REPORTS["usage/completions"]

    def get(self, request: Request) -> Response:
        organization_id, report = caller_of(request).organization_id, self.report
        page = organization_query.parse(request._request, organization_id, report.spec, database_now())
        query, after = report.narrowed(page.query), None
        if query.is_of_all_end_users:
            found, after = end_user_pages.page(query, page.after)
        else:
            found = buckets.buckets(query)
        names = _names_of(found)
        data = [
            report.pages.bucket(
                start_time=int(bucket.start.timestamp()),
                end_time=int(bucket.end.timestamp()),
                results=[
                    msgspec.structs.replace(
                        report.result(sums, page), end_user=names.get(sums.group.get("end_user_id"), UNSET)
                    )
                    for sums in bucket.sums
                ],
            )
            for bucket in found
        ]
        cursor = page.next_page(found[-1], after) if found else None
        return respond(report.pages.page(data=data, has_more=cursor is not None, next_page=cursor))


routes = [
    path(f"organization/{where}", OrganizationRoute.as_view(report=report))
    for where, report in REPORTS.items()
]


def _models_of(*kinds: ModelKind) -> tuple[str, ...]:
    return tuple(ServedModel.objects.filter(kind__in=kinds).values_list("id", flat=True))


def _names_of(found: list[Bucket]) -> dict[int | None, str]:
    """Return the names of the end users in the buckets, by their ids."""
    groups = [sums.group for bucket in found for sums in bucket.sums]
    ids = {group["end_user_id"] for group in groups if "end_user_id" in group}
    return dict(EndUser.objects.filter(pk__in=ids).values_list("pk", "name"))


def _id(sums: Sums, column: str) -> str | None:
    value = sums.group.get(column)
    return None if value is None else str(value)
