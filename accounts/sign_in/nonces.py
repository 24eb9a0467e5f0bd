"""OpenID Connect's nonce: the id token answers the sign-in that this browser began, and no other.

https://openid.net/specs/openid-connect-core-1_0.html#NonceNotes. django-allauth sends none.
"""

from collections.abc import Mapping
from typing import Any

from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from django.http import HttpRequest, HttpResponseBase
from django.utils.crypto import constant_time_compare, get_random_string

NONCE_CHARS = 32


class NonceProvider(OpenIDConnectProvider):
    """Sends a nonce with each authorization request, and keeps it in the session with the request's state."""

    def redirect(
        self, request: HttpRequest, process: str, next_url: str | None = None, data: Any = None, **kwargs: Any
    ) -> HttpResponseBase:
        nonce = get_random_string(NONCE_CHARS)
        # After the parameters of our page's URL, which may not replace it.
        kwargs["auth_params"] = {**(kwargs.get("auth_params") or self.get_auth_params()), "nonce": nonce}
        answer: HttpResponseBase = super().redirect(request, process, next_url, data, nonce=nonce, **kwargs)
        return answer


def is_answer(state: Mapping[str, Any], token: Mapping[str, Any]) -> bool:
    """Return whether the id token has the nonce that was sent with this state.

    A sign-in that a process of an older release began has none.
    """
    sent, came = state.get("nonce"), token.get("nonce")
    return sent is None or (isinstance(came, str) and constant_time_compare(sent, came))
