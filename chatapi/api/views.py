"""The client routes that read: models, the calling key, receipts. Errors have the protocol's envelope."""

import logging
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec
from django.http import HttpResponse
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import access
from accounts.authentication import Caller
from accounts.errors import (
    CertificateRefused,
    IPNotAllowed,
    NotAuthenticated,
    PermissionDenied,
    TooManyFailedAttempts,
)
from accounts.models import KeyScope
from chatapi import catalog, errors, identity
from chatapi.api import resources
from chatapi.api.client_routes import envelope
from chatapi.api.generations_reference import GENERATION_ID
from chatapi.catalog import CatalogModel
from chatapi.models import ServedModel
from chatapi.wire.api_reference import TEXT, Route, Schema, new_answer, new_parameter
from chatapi.wire.invalid_request import InvalidRequest, duplicate
from usage.books import credit, spending
from usage.errors import is_unavailable
from usage.models import Generation
from usage.rollups.refused_requests import refused_requests

_MODELS_LIMIT = re.compile(r"[1-9][0-9]{0,2}|1000")
# As Anthropic's SDKs write a list. No model here is retired: such models are not served.
_LIFECYCLE = "lifecycle[]"
_LIFECYCLES = ("active", "deprecated", "retired")
log = logging.getLogger(__name__)


def error_response(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """Return an envelope for anything that a view raised (DRF's `EXCEPTION_HANDLER`)."""
    request = context["request"]
    # Here and not in `errors`: Django's own database errors come only from these routes.
    if is_unavailable(error):
        log.warning("the database is not available: %s", error)
        return envelope(request, errors.unavailable("The service can't read its books right now."))
    if isinstance(error, MethodNotAllowed):
        error = errors.method_not_allowed(request.method, " or ".join(context["view"].allowed_methods))
    if isinstance(error, NotAuthenticated | TooManyFailedAttempts | IPNotAllowed | CertificateRefused):
        refused_requests.count_key_refusal(error)
    api_error = errors.from_exception(error)
    if api_error.failure.code == "internal_error":
        # DRF handles the exception, so Django's own logging never sees it.
        log.error("a request failed", exc_info=error)
    return envelope(request, api_error)


def caller_of(request: Request) -> Caller:
    caller: object = request.user
    assert isinstance(caller, Caller), "every client route is behind APIKeyAuthentication"
    return caller


def respond(resource: msgspec.Struct) -> Response:
    return Response(msgspec.to_builtins(resource))


class JSONAlways(BaseContentNegotiation):
    """Ignores `Accept`: clients of streams send `text/event-stream` everywhere, which would be a 406."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        first = next(iter(renderers))
        return first, str(first.media_type)


def new_reading(
    path: str, names: tuple[str, str, str], description: str, schema: str, *parameters: Schema
) -> Route:
    """Return the description of a route that answers a `GET`; `names` are its tag, its id and its summary."""
    tag, operation_id, summary = names
    return Route(
        method="get",
        path=path,
        tag=tag,
        operation_id=operation_id,
        summary=summary,
        description=description,
        answers={200: new_answer(summary, schema)},
        errors=(404,) if any(each["in"] == "path" for each in parameters) else (),
        parameters=parameters,
    )


class ClientRoute(APIView):
    """A route of the API that needs a key and only reads.

    It checks the method before the key, as the hot routes do.
    """

    content_negotiation_class = JSONAlways
    http_method_names = ["get", "head"]
    required_scope: ClassVar[KeyScope | None] = None
    """The scope that a restricted key needs; None: it needs no scope."""
    needs_admin_key: ClassVar[bool] = False
    """Whether only admin keys may use the route, because it shows the money of the whole organization."""
    reference: ClassVar[Route]
    """The route's entry in the API's reference (OpenAPI); for a report, it is made of its `Report`."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse other methods before anything is looked up, then keys that lack the scope or the right."""
        if str(request.method).lower() not in self.http_method_names:
            raise MethodNotAllowed(str(request.method))
        super().initial(request, *args, **kwargs)
        if self.required_scope is not None:
            caller_of(request).require(self.required_scope)
        if self.needs_admin_key and not caller_of(request).is_admin:
            raise PermissionDenied(
                "This needs an admin key. An owner or admin of your organization, or the operator, can make "
                "one."
            )


class Models(ClientRoute):
    """`GET /v1/models`: the served models, with the members and the pages of OpenAI's and Anthropic's "List
    models"; without `limit` all of them.
    """

    required_scope = KeyScope.MODELS
    reference = new_reading(
        "/v1/models",
        ("models", "listModels", "List the models that the key can use"),
        "Those that are active, have an active deployment and a price, and that the key may use.",
        "ModelList",
        new_parameter(
            "query",
            "limit",
            {"type": "integer", "minimum": 1, "maximum": 1_000},
            "The most models of a page; without it, all.",
        ),
        new_parameter("query", "after_id", TEXT, "The `last_id` of the page before."),
        new_parameter("query", "before_id", TEXT, "The `first_id` of the page behind."),
        new_parameter(
            "query",
            _LIFECYCLE,
            {"type": "array", "items": {"enum": list(_LIFECYCLES), **TEXT}},
            "Only models in these stages.",
        ),
    )

    def get(self, request: Request) -> Response:
        """Return the served, priced and listed models that the key may use; each alias is an entry, too."""
        served = {name: each.id for name, each in _served(caller_of(request)).items() if each.is_listed}
        # One query for all names: aliases share rows.
        rows = ServedModel.objects.in_bulk(set(served.values()))
        query = request.query_params
        for name in ("limit", "after_id", "before_id"):
            if len(query.getlist(name)) > 1:
                raise duplicate(name)
        limit = query.get("limit")
        if limit is not None and not _MODELS_LIMIT.fullmatch(limit):
            raise InvalidRequest("Invalid value for 'limit': it must be a number from 1 to 1000.", "limit")
        stages = query.getlist(_LIFECYCLE)
        if not set(stages).issubset(_LIFECYCLES):
            allowed = "supported values are 'active', 'deprecated' and 'retired'"
            raise InvalidRequest(f"Invalid value for '{_LIFECYCLE}': {allowed}.", _LIFECYCLE)
        models = [resources.model(rows[id_], name) for name, id_ in sorted(served.items()) if id_ in rows]
        return respond(
            resources.models_page(
                [model for model in models if not stages or model.lifecycle in stages],
                None if limit is None else int(limit),
                query.get("after_id"),
                query.get("before_id"),
            )
        )


class OneModel(ClientRoute):
    """`GET /v1/models/{id}`; ids and aliases may contain slashes."""

    required_scope = KeyScope.MODELS
    reference = new_reading(
        "/v1/models/{model}",
        ("models", "retrieveModel", "Show one model"),
        "If the key can use it.",
        "Model",
        new_parameter("path", "model", TEXT, "The model's id; it may contain slashes."),
    )

    def get(self, request: Request, model: str) -> Response:
        """Return the model, or raise a 404 unless it is served to this key."""
        known = _served(caller_of(request)).get(model)
        row = ServedModel.objects.filter(id=known.id).first() if known else None
        if row is None:
            raise errors.model_not_found(model)
        return respond(resources.model(row, model))


class Key(ClientRoute):
    """`GET /v1/key`: the calling key and what limits it."""

    reference = new_reading(
        "/v1/key",
        ("account", "retrieveKey", "Show the calling key, and what limits it"),
        "The budgets, the credit and the rate limits that can refuse its requests, without those of end "
        "users. `GET /v1/models` lists the models that it can use.",
        "Key",
    )

    def get(self, request: Request) -> Response:
        caller = caller_of(request)
        row = access.own_key(caller)
        budgets = spending.now(
            organization_id=row.project.organization_id,
            project_id=row.project_id,
            api_key_id=row.pk,
            time_zone=row.project.organization.time_zone,
        )
        balance = credit.balance(row.project.organization)
        return respond(resources.key(row, budgets, balance, caller.rate_limits))


class Receipt(ClientRoute):
    """`GET /v1/generations/{id}`: the tokens and costs of one generation."""

    required_scope = KeyScope.GENERATIONS
    reference = new_reading(
        "/v1/generations/{generation_id}",
        ("generations", "retrieveGeneration", "Show a generation's receipt"),
        "Test keys see the generations of their project's test keys, live keys those of its live keys.",
        "Receipt",
        GENERATION_ID,
    )

    def get(self, request: Request, generation_id: str) -> Response:
        """Return the receipt, or raise a 404 unless it is of the key's project and mode, test or live."""
        uuid = identity.parse_id(generation_id)
        visible = access.visible_to(caller_of(request), Generation.objects.filter(id=uuid)) if uuid else None
        row = None if visible is None else visible.first()
        if row is None:
            raise errors.generation_not_found()
        return respond(resources.receipt(row))


def _served(caller: Caller) -> dict[str, CatalogModel]:
    """Return the models that the caller may use, by each of their names."""
    known = catalog.load()
    own = {name: known[id_] for name, id_ in caller.model_aliases.items() if id_ in known}
    return {
        name: model
        # A project's own names come first, as they do for completions (`Services.model`).
        for name, model in (known | own).items()
        if model.price is not None and caller.may_use(model.id)
    }
