"""API key authentication for Django REST Framework; session cookies open nothing here."""

from django.conf import settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from accounts import forwarding
from accounts.authentication import KEY_HEADERS, Caller, look_up, sent_key
from accounts.failed_attempts import attempts


class APIKeyAuthentication(BaseAuthentication):
    """Sets `request.user` to the `Caller` of the key in one of `KEY_HEADERS`."""

    def authenticate(self, request: Request) -> tuple[Caller, None]:
        """Return the caller; a malformed key costs no query.

        Raises `NotAuthenticated`, `TwoKeys`, `TooManyFailedAttempts`, `IPNotAllowed` or `CertificateRefused`.
        """
        ip = forwarding.of_meta(request.META, settings.TRUSTED_PROXIES).ip
        with attempts.counted(ip):
            key = sent_key(KEY_HEADERS, request.headers.get)
            with attempts.permitted(ip, key):
                caller = look_up(key)
        caller.require_ip(ip)
        caller.require_certificate(lambda: forwarding.client_certificate_of_meta(request.META))
        return caller, None

    def authenticate_header(self, request: Request) -> str:
        """Return the `WWW-Authenticate` header of a 401 (RFC 6750)."""
        return "Bearer"
