"""Gives every answer of Django's an `x-request-id`; the hot routes and the server give their own."""

from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from chatapi import identity


class RequestIdMiddleware(MiddlewareMixin):
    """`x-request-id` on every answer: the client's own when it is harmless, else a new one."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Add the header."""
        wish = request.headers.get("x-request-id", "").encode(errors="replace")
        response["x-request-id"] = identity.request_id(wish, identity.new_id()).decode()
        return response
