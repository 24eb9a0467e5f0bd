"""One format per route, whatever a client asks for."""

from collections.abc import Iterable
from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class JSONAlways(BaseContentNegotiation):
    """Answers in the view's own format: clients of streams send `Accept: text/event-stream`, which would be a
    406.
    """

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        """The first parser."""
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """The first renderer."""
        first = next(iter(renderers))
        return first, str(first.media_type)
