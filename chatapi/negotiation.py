"""One format per route, whatever a client asks for."""

from collections.abc import Sequence
from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class JSONAlways(BaseContentNegotiation):
    """Answers in the view's own format: clients of streams send `Accept: text/event-stream`, which would be a 406."""

    def select_parser(self, request: Request, parsers: Sequence[Any]) -> Any:
        """The first parser."""
        return parsers[0]

    def select_renderer(  # type: ignore[override]  DRF's own class leaves the types open
        self, request: Request, renderers: Sequence[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """The first renderer."""
        return renderers[0], str(renderers[0].media_type)
