"""Gives Django's answers the headers that identify an answer of the API; the hot routes and the server give their own."""

import time

from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from chatapi import identity

API_VERSION = "2020-10-01"
"""The only version of OpenAI's API that there has ever been; its SDKs show it."""


class IdentifyingMiddleware(MiddlewareMixin):
    """`x-request-id` on every answer: the client's own when it is harmless, else a new one. `openai-*` on those of the API."""

    def process_request(self, request: HttpRequest) -> None:
        """Note when it began."""
        request.META["chatapi.began_at"] = time.monotonic()

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Add the headers."""
        wish = request.headers.get("x-request-id", "").encode(errors="replace")
        response["x-request-id"] = identity.request_id(wish, identity.new_id()).decode()
        if "/v1/" in request.path:
            response["openai-version"] = API_VERSION
            response["openai-processing-ms"] = str(round((time.monotonic() - request.META["chatapi.began_at"]) * 1_000))
        return response
