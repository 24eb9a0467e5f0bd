"""API keys for Django REST Framework: the only way in; session cookies open nothing here."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from accounts.authentication import Caller, bearer, look_up


class APIKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>` becomes a `Caller` in `request.user`."""

    def authenticate(self, request: Request) -> tuple[Caller, None]:
        """The caller; raises `NotAuthenticated`, for which a malformed key costs no query."""
        return look_up(bearer(request.META.get("HTTP_AUTHORIZATION"))), None

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for (RFC 6750)."""
        return "Bearer"
