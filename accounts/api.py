"""API keys for Django REST Framework: the only way in; session cookies open nothing here."""

from django.conf import settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from accounts import client_address
from accounts.authentication import Caller, bearer, look_up
from accounts.failed_attempts import attempts


class APIKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>` becomes a `Caller` in `request.user`."""

    def authenticate(self, request: Request) -> tuple[Caller, None]:
        """The caller; raises `NotAuthenticated` or `TooManyFailedAttempts`, for which a malformed key costs
        no query.
        """
        sent = request.META
        address = client_address.of(
            sent.get("REMOTE_ADDR") or "", sent.get("HTTP_X_FORWARDED_FOR", ""), settings.TRUSTED_PROXIES
        )
        with attempts.counted(address):
            key = bearer(sent.get("HTTP_AUTHORIZATION"))
            with attempts.permitted(address, key):
                return look_up(key), None

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for (RFC 6750)."""
        return "Bearer"
