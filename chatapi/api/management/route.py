"""The base of the management API's routes: checks permissions, parses bodies and queries, finds rows."""

import re
from datetime import datetime, timedelta
from typing import Any, ClassVar, NoReturn, TypeVar

import msgspec
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError, connection
from django.db.models import Model, QuerySet
from django.utils import timezone
from msgspec import Struct
from msgspec.inspect import ListType, type_info
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request
from rest_framework.views import APIView

from accounts import access
from accounts.authentication import Caller
from accounts.models import KeyScope, Project
from chatapi import errors
from chatapi.api.management.operations import ManagementOperation, Operations
from chatapi.api.views import JSONAlways, caller_of
from chatapi.wire import json_guard
from chatapi.wire.invalid_request import InvalidRequest, explain, unknown

_ID = re.compile(r"[0-9]{1,18}", re.ASCII)
_MOST_ROWS = 1_000  # of members, keys and so on; projects have `MAX_PROJECTS`, too
_Row = TypeVar("_Row", bound=Model)


class ManagementRoute(APIView):
    """A route of the caller's organization, for keys with a role that permits the operation."""

    content_negotiation_class = JSONAlways
    http_method_names = ["get", "head", "post", "delete"]
    operations: ClassVar[Operations]
    operation: ManagementOperation
    """The operation of the request's method."""
    below: ClassVar[str] = "organization/"
    """The beginning of the path after `/v1/`; some of OpenAI's routes about projects have none."""
    path: ClassVar[str]
    """The rest of the path, in the syntax of Django's `path()`."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse other methods, then keys without the scope, the role or its permission."""
        operation = self.operations.get("GET" if request.method == "HEAD" else str(request.method))
        if operation is None:
            raise MethodNotAllowed(str(request.method))
        super().initial(request, *args, **kwargs)
        caller_of(request).require(KeyScope.MANAGEMENT)
        access.require(caller_of(request), operation.permission)
        self.operation = operation

    def handle_exception(self, exc: Exception) -> Any:
        """Answer 400 to invalid values of a row, and 409 to a change that conflicts with another one."""
        if isinstance(exc, ValidationError):
            exc = _explained(exc)
        elif isinstance(exc, IntegrityError):
            exc = errors.conflict()
        return super().handle_exception(exc)

    def body(self, request: Request) -> Any:
        """Return the body as the operation's type. Raises `InvalidRequest`, for an unknown member too."""
        body_type = self.operation.body
        assert body_type is not None, "the operation takes a body"
        if request.content_type.partition(";")[0].strip().lower() != "application/json":
            raise errors.unsupported_media_type("application/json")
        try:
            sent = json_guard.decode(request._request.body)
        except msgspec.ValidationError:
            raise InvalidRequest("A number in the body is out of range.") from None
        return _converted({name: value for name, value in sent.items() if value is not None}, body_type)

    def query(self, request: Request) -> Any:
        """Return the query as the operation's type. Parameters that are lists are repeated, with or without
        brackets: `ids[]=1&ids[]=2`. Raises `InvalidRequest`, for an unknown parameter too.
        """
        query_type = self.operation.query
        assert query_type is not None, "the operation takes a query"
        fields = {field.encode_name: field for field in msgspec.structs.fields(query_type)}
        sent: dict[str, Any] = {}
        for name, texts in request._request.GET.lists():
            plain = name.removesuffix("[]")
            is_list = plain in fields and _is_list(fields[plain].type)
            if not is_list and (name != plain or len(texts) > 1):
                raise InvalidRequest(f"Invalid value for '{name[:100]}': send it once.", name[:100])
            sent[plain] = sent.get(plain, []) + texts if is_list else texts[0]
        return _converted(sent, query_type, strict=False)

    def project(self, request: Request, project_id: str) -> Project:
        """Return the project of the caller's organization, or raise a 404. Raises `InvalidRequest` for a
        write to an archived project.
        """
        project = find(caller_of(request), Project.objects.all(), project_id, "project")
        if request.method in ("POST", "DELETE") and not project.is_active:
            message = "This project is archived, so it can't be changed."
            raise InvalidRequest(message, "project_id", "project_archived")
        return project


def locked(rows: QuerySet[_Row]) -> QuerySet[_Row]:
    """Return the rows, locked if a transaction is open, so that a change overwrites no concurrent one."""
    return rows.select_for_update(of=("self",), no_key=True) if connection.in_atomic_block else rows


def find(caller: Caller, rows: QuerySet[_Row], row_id: str, noun: str) -> _Row:
    """Return the row of the caller's organization, locked if a transaction is open. Raises the same 404 for a
    row of another organization as for an unknown id.
    """
    own = locked(access.managed_by(caller, rows))
    row = own.filter(pk=int(row_id)).first() if _ID.fullmatch(row_id) else None
    if row is None:
        raise errors.object_not_found(noun, f"{noun.replace(' ', '_')}_id")
    return row


def refuse(message: str, param: str) -> NoReturn:
    """Raise `InvalidRequest` that names the parameter."""
    raise InvalidRequest(f"Invalid value for '{param}': {message}", param)


def refuse_more(rows: QuerySet[Any], noun: str) -> None:
    """Raise `InvalidRequest` if there are `_MOST_ROWS` rows already."""
    if rows.count() >= _MOST_ROWS:
        raise InvalidRequest(f"There can be {_MOST_ROWS} {noun} at most.", None, "too_many_objects")


def expiry(expires_in_seconds: int | None) -> datetime | None:
    """Return the time after this number of seconds from now, or None for None."""
    return None if expires_in_seconds is None else timezone.now() + timedelta(seconds=expires_in_seconds)


def _is_list(type_: Any) -> bool:
    info = type_info(type_)
    return any(isinstance(each, ListType) for each in getattr(info, "types", (info,)))


def _converted(sent: dict[str, Any], type_: type[Struct], *, strict: bool = True) -> Any:
    known = [field.encode_name for field in msgspec.structs.fields(type_)]
    for name in sent:
        if name not in known:
            raise unknown(name, known)
    try:
        return msgspec.convert(sent, type_, strict=strict)
    except msgspec.ValidationError as error:
        raise explain(error, type_, sent) from None


def _explained(error: ValidationError) -> InvalidRequest:
    """Return the first message as an error that names the parameter, if the message is about one."""
    if not hasattr(error, "error_dict"):
        return InvalidRequest(error.messages[0])
    field, messages = next(iter(error.message_dict.items()))
    if field == NON_FIELD_ERRORS:
        return InvalidRequest(messages[0])
    return InvalidRequest(f"Invalid value for '{field}': {messages[0]}", field)
