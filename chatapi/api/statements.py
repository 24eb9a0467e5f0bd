"""`/v1/organization/statements`: statements, and a preview of the current month, for admin keys."""

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, Final, Literal

from django.http import HttpResponse
from django.urls import path
from msgspec import Struct
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access
from accounts.models import KeyScope
from chatapi import errors
from chatapi.api.organization_query import Sent, parameters
from chatapi.api.views import ClientRoute, caller_of, new_reading, respond
from chatapi.wire.api_reference import PAGE, TEXT, new_parameter
from chatapi.wire.invalid_request import InvalidRequest
from usage.models import Statement
from usage.statements import reading
from usage.statements.document import Money
from usage.statements.formats import FORMATS, file_of
from usage.statements.month import Month

_LIMITS = range(1, 101)
_USUAL_LIMIT = 20
_USUAL_FORMAT: Final = "json"
# Beside JSON, as the reference names them.
_MEDIA_TYPES = ", ".join(f"`{each.media_type}`" for name, each in FORMATS.items() if name != _USUAL_FORMAT)


class StatementSummary(Struct, frozen=True, kw_only=True):
    """A statement of a closed month; `sha256` is the digest of its JSON, which is in the ledger's chain of
    seals once `is_sealed`.
    """

    id: str
    object: Literal["organization.statement_summary"] = "organization.statement_summary"
    issued_at: datetime
    charged: Money
    closing_balance: Money
    sha256: str
    is_sealed: bool


class StatementPage(Struct, frozen=True, kw_only=True):
    """Statements, newest first; `after=last_id` asks for the next page."""

    object: Literal["list"] = "list"
    data: list[StatementSummary]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Statements(ClientRoute):
    """`GET /v1/organization/statements`: those of closed months."""

    required_scope = KeyScope.USAGE
    needs_admin_key = True
    reference = new_reading(
        "/v1/organization/statements",
        ("organization", "listStatements", "List the organization's statements of closed months"),
        "Needs an admin key. The newest statement is the first one.",
        "StatementPage",
        *PAGE,
    )

    def get(self, request: Request) -> Response:
        """Return a page, newest first."""
        sent = parameters(request._request, {"limit", "after"})
        rows = access.managed_by(caller_of(request), Statement.objects.all())
        if "after" in sent:
            month = Month.parse(sent["after"][0])
            if month is None:
                raise InvalidRequest("Invalid value for 'after': expected a month such as 2026-11.", "after")
            rows = rows.filter(month__lt=month.first_day)
        limit = _limit(sent)
        found = list(rows.order_by("-month").defer("content")[: limit + 1])
        sealed_id = reading.last_sealed_id()
        data = [_summary(row, sealed_id) for row in found[:limit]]
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        page = StatementPage(data=data, first_id=first_id, last_id=last_id, has_more=len(found) > limit)
        return respond(page)


class StatementOfMonth(ClientRoute):
    """`GET /v1/organization/statements/{period}`: one statement as a file."""

    required_scope = KeyScope.USAGE
    needs_admin_key = True
    reference = new_reading(
        "/v1/organization/statements/{period}",
        ("organization", "retrieveStatement", "Show the statement of a month"),
        "Needs an admin key. Of a month that is not closed it is a preview. It is JSON, unless `format` or "
        f"`Accept` asks for another type: {_MEDIA_TYPES}.",
        "StatementDocument",
        new_parameter("path", "period", TEXT, "A month of UTC, such as `2026-11`."),
        new_parameter("query", "format", {"enum": [*FORMATS], **TEXT}, "It takes precedence over `Accept`."),
    )

    def get(self, request: Request, period: str) -> HttpResponse:
        """Return the statement, or the preview of a month that is not closed; raises a 404."""
        file_format = _format(request, parameters(request._request, {"format"}))
        caller = caller_of(request)
        rows = access.managed_by(caller, Statement.objects.all())
        organization = access.own_key(caller).project.organization
        month = Month.parse(period)
        found = month and reading.read(rows, organization, month)
        if not found:
            raise errors.object_not_found("statement", "period")
        file = file_of(found, file_format)
        response = HttpResponse(file.content, content_type=file.content_type)
        if file_format == "json":
            if found.row is not None:  # RFC 9530
                digest = b64encode(bytes.fromhex(found.row.digest)).decode()
                response["repr-digest"] = f"sha-256=:{digest}:"
        else:
            response["content-disposition"] = f'attachment; filename="{file.name}"'
        response["vary"] = "accept"
        return response


routes: list[Any] = [
    path("organization/statements", Statements.as_view()),
    path("organization/statements/<str:period>", StatementOfMonth.as_view()),
]


def _summary(row: Statement, sealed_id: int) -> StatementSummary:
    return StatementSummary(
        id=str(Month.of(row.month)),
        issued_at=row.issued_at.astimezone(UTC),
        charged=Money.of(row.charged_nanodollars),
        closing_balance=Money.of(row.closing_balance_nanodollars),
        sha256=row.digest,
        is_sealed=row.pk <= sealed_id,
    )


def _limit(sent: Sent) -> int:
    text = sent["limit"][0] if "limit" in sent else str(_USUAL_LIMIT)
    if not (text.isascii() and text.isdecimal() and len(text) < 4 and int(text) in _LIMITS):
        raise InvalidRequest("Invalid value for 'limit': expected an integer from 1 to 100.", "limit")
    return int(text)


def _format(request: Request, sent: Sent) -> str:
    """Return the format that the query names, else the one that `Accept` prefers, else JSON."""
    if "format" in sent:
        if sent["format"][0] not in FORMATS:
            words = ", ".join(f"'{name}'" for name in FORMATS)
            raise InvalidRequest(f"Invalid value for 'format': supported values are {words}.", "format")
        return sent["format"][0]
    # The first one is sent for `*/*`.
    usual_first = sorted(FORMATS, key=lambda name: name != _USUAL_FORMAT)
    named = {FORMATS[name].media_type: name for name in usual_first}
    return named.get(request._request.get_preferred_type([*named]) or "", _USUAL_FORMAT)
