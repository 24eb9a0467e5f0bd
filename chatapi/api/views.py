"""The client routes that read: models, the calling key, receipts. Everything is JSON, errors are OpenAI's
envelope.
"""

import logging
from typing import Any, ClassVar, NoReturn

from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import access
from accounts.authentication import Caller
from accounts.models import KeyScope
from chatapi import catalog, errors, identity
from chatapi.api import resources
from chatapi.api.error_pages import envelope
from chatapi.api.openapi import describe
from chatapi.errors import APIError
from chatapi.models import ServedModel
from usage.books import credit, spending
from usage.errors import is_unavailable
from usage.models import Generation

log = logging.getLogger(__name__)


def error_response(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """Whatever a view raised, as an envelope (DRF's `EXCEPTION_HANDLER`)."""
    told = _told(error)
    if told.failure.code == "internal_error":
        log.error("a request failed", exc_info=error)
    return envelope(told)


def _told(error: Exception) -> APIError:
    if is_unavailable(error):
        log.warning("the database is not available: %s", error)
        return errors.unavailable("The service can't read its books right now.")
    return errors.from_exception(error)


class ClientRoute(APIView):
    """A route that only reads. Its method is checked first, then its key: the order of the hot routes."""

    http_method_names = ["get", "head"]
    required_scope: ClassVar[KeyScope | None] = None
    """What a key that is narrowed to some scopes needs here; None: nothing."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse other methods before anything is looked up, and keys that lack the scope."""
        if str(request.method).lower() not in self.http_method_names:
            self.http_method_not_allowed(request)
        super().initial(request, *args, **kwargs)
        if self.required_scope is not None:
            _caller(request).require(self.required_scope)

    def http_method_not_allowed(self, request: HttpRequest, *args: Any, **kwargs: Any) -> NoReturn:
        """405; DRF adds `Allow`."""
        raise errors.method_not_allowed(str(request.method), " or ".join(self.allowed_methods))

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """What one key may see is not for a cache that others share."""
        response["cache-control"] = "no-store"
        return super().finalize_response(request, response, *args, **kwargs)


class Models(ClientRoute):
    """`GET /v1/models`: what is served (OpenAI's API reference, "List models")."""

    required_scope = KeyScope.MODELS

    @describe("listModels", "List the models that the key can use", "ModelList")
    def get(self, request: Request) -> Response:
        """Those that are active, have an active deployment and a price, and that the key may use."""
        rows = ServedModel.objects.filter(id__in=_served_ids(_caller(request)))
        return Response(resources.to_json(resources.ModelList(data=[resources.model(row) for row in rows])))


class Model(ClientRoute):
    """`GET /v1/models/{id}`; ids may contain slashes."""

    required_scope = KeyScope.MODELS

    @describe(
        "retrieveModel", "Show one model", "Model", 404, model="The model's id; it may contain slashes."
    )
    def get(self, request: Request, model: str) -> Response:
        """The model, if it is served to this key."""
        is_served = model in _served_ids(_caller(request))
        row = ServedModel.objects.filter(id=model).first() if is_served else None
        if row is None:
            raise errors.model_not_found(model)
        return Response(resources.to_json(resources.model(row)))


class Key(ClientRoute):
    """`GET /v1/key`: who am I, and how much is left."""

    @describe("retrieveKey", "Show the calling key, and what limits it", "Key")
    def get(self, request: Request) -> Response:
        """The key that asks."""
        row = access.own_key(_caller(request))
        budgets = spending.now(
            organization_id=row.project.organization_id,
            project_id=row.project_id,
            api_key_id=row.pk,
            time_zone=row.project.organization.time_zone,
        )
        balance = credit.balance(row.project.organization)
        return Response(resources.to_json(resources.key(row, budgets, balance, _caller(request).rate_limits)))


class Receipt(ClientRoute):
    """`GET /v1/generations/{id}`: what one generation used and cost."""

    required_scope = KeyScope.GENERATIONS

    @describe(
        "retrieveGeneration",
        "Show a generation's receipt",
        "Receipt",
        404,
        generation_id="In any dialect's form.",
    )
    def get(self, request: Request, generation_id: str) -> Response:
        """The receipt, for keys of the generation's own project; test keys see those of test keys, live keys
        those of live keys.
        """
        uuid = identity.parse_id(generation_id)
        row = (
            access.visible_to(_caller(request), Generation.objects.filter(id=uuid)).first() if uuid else None
        )
        if row is None:
            raise errors.generation_not_found()
        return Response(resources.to_json(resources.receipt(row)))


def _served_ids(caller: Caller) -> set[str]:
    return {
        model.id for model in catalog.load().values() if model.price is not None and caller.may_use(model.id)
    }


def _caller(request: Request) -> Caller:
    caller: object = request.user
    assert isinstance(caller, Caller), "every client route is behind APIKeyAuthentication"
    return caller
