"""The HTTP APIs that upstreams speak: what each is asked, and how its stream becomes chat chunks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from chatapi.wire import sse, upstream_messages, upstream_request
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.sse import Event


class Body(Protocol):
    """Makes the body of a request."""

    def __call__(
        self,
        request: GenerationRequest,
        *,
        model: str,
        max_output_tokens: int,
        extra_parameters: frozenset[str],
        is_streamed: bool = True,
    ) -> dict[str, Any]:
        """Return the JSON-able body; raise `UpstreamError` for a request that this API has no words for."""
        ...


class Parser(Protocol):
    """Turns the bytes of one stream into the events of a chat in OpenAI's API; see `sse.Parser`."""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes."""
        ...

    def close(self) -> list[Event]:
        """Return the events that the end of the input leaves."""
        ...


@dataclass(frozen=True, slots=True)
class UpstreamAPI:
    """One HTTP API."""

    path: Callable[[GenerationRequest], str]
    """The path below the upstream's base URL."""
    body: Body
    headers: Callable[[str], dict[str, str]]
    """Makes the headers that hold the upstream's key."""
    parser: Callable[[], Parser]


OPENAI = UpstreamAPI(
    path=upstream_request.upstream_path,
    body=upstream_request.upstream_body,
    headers=lambda key: {"Authorization": f"Bearer {key}"} if key else {},
    parser=sse.Parser,
)
ANTHROPIC = UpstreamAPI(
    path=lambda request: "/messages",
    body=upstream_messages.messages_body,
    headers=lambda key: upstream_messages.VERSION | ({"x-api-key": key} if key else {}),
    parser=upstream_messages.MessagesParser,
)
