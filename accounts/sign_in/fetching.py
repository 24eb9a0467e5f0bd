"""The HTTP client for identity providers, whose URLs people of organizations enter.

A connection ends `TIME_LIMIT_S` after the start of its TLS handshake, and an answer after `MAX_BYTES`.
Requests follow no redirect, and go by HTTPS to public addresses only, unless the operator allows private
addresses.

Two names are private: `_new_conn` of urllib3 (as in 2.8) and `_content` of requests (as in 2.34). Tests of
addresses, long and slow answers in `tests/chatapi/test_identity_provider_settings.py` fail without them.
"""

import ssl
import time
from typing import Any

import requests
from django.conf import settings
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool

from accounts.ip_addresses import is_public

TIME_LIMIT_S = 10.0
# The longest wait for a connection and for each read.
_SILENCE_S = 5.0
MAX_BYTES = 1024 * 1024
_PART_BYTES = 16 * 1024


class NotFetched(requests.RequestException):
    """An identity provider cannot be used; the text says why, to the person who entered its URL."""


class _Socket(ssl.SSLSocket):
    """A socket that waits for `TIME_LIMIT_S` altogether, however slowly bytes trickle in."""

    def do_handshake(self, block: bool = False) -> None:
        self._ends_at = time.monotonic() + TIME_LIMIT_S
        super().do_handshake(block)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(min(left_s, _SILENCE_S))
        return super().recv_into(*args, **kwargs)


class _PublicConnection(HTTPSConnection):
    """A connection that closes before its first byte if the peer's address is private.

    The address is that of the connected socket, so no second answer of a name server can differ from it.
    """

    def _new_conn(self) -> Any:
        connected = super()._new_conn()
        if not settings.OIDC_PRIVATE_ADDRESSES and not is_public(connected.getpeername()[0]):
            connected.close()
            raise NotFetched("The address of this server is private.")
        return connected


class _PublicPool(HTTPSConnectionPool):
    ConnectionCls = _PublicConnection


class _PublicAdapter(HTTPAdapter):
    """Verifies certificates with the system's authorities, or those of SSL_CERT_FILE."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        context = ssl.create_default_context()
        context.sslsocket_class = _Socket
        super().init_poolmanager(*args, **kwargs, ssl_context=context)
        self.poolmanager.pool_classes_by_scheme = {"https": _PublicPool}

    def cert_verify(self, *args: Any, **kwargs: Any) -> None:
        """Leave the authorities to the context: requests would add its own bundle."""


class BoundedSession(requests.Session):
    """Sends requests within the bounds of this module."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.adapters.clear()
        self.mount("https://", _PublicAdapter())

    def request(self, method: str, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        """Send the request and read the whole answer. Raises `RequestException`."""
        kwargs |= {"timeout": _SILENCE_S, "allow_redirects": False, "stream": True}
        response = super().request(method, url, *args, **kwargs)
        with response:
            parts = bytearray()
            for part in response.iter_content(_PART_BYTES):
                parts += part
                if len(parts) > MAX_BYTES:
                    raise NotFetched("The answer of this server is too long.")
        response._content = bytes(parts)
        return response
