"""The HTTP APIs of upstreams: the requests that each takes, and the parser of its streams."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from chatapi.wire import sse
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.prompts import Messages
from chatapi.wire.sse import Event
from chatapi.wire.upstream.anthropic_request import VERSION, messages_body, unsupported
from chatapi.wire.upstream.anthropic_stream import MessagesParser
from chatapi.wire.upstream.upstream_kinds import UPSTREAM_KINDS, UpstreamKind


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

    kinds: Mapping[Any, UpstreamKind]
    """The kinds of request that it takes, by the type of the prompt."""
    headers: Callable[[str], dict[str, str]]
    """Returns the headers with the upstream's key."""
    parser: Callable[[], Parser]
    list_parameters: Mapping[str, str] = field(default_factory=dict)
    """The parameters of `GET /models` with which its list is whole."""

    def kind(self, request: GenerationRequest) -> UpstreamKind:
        """Return the kind of the request. Raises `UpstreamError` if the API does not have it."""
        kind = self.kinds.get(type(request.prompt))
        if kind is None:
            raise unsupported(request.prompt.param)
        return kind


OPENAI = UpstreamAPI(
    kinds=UPSTREAM_KINDS,
    headers=lambda key: {"Authorization": f"Bearer {key}"} if key else {},
    parser=sse.Parser,
)
ANTHROPIC = UpstreamAPI(
    kinds={Messages: UPSTREAM_KINDS[Messages]._replace(path="/messages", body=messages_body)},
    headers=lambda key: VERSION | ({"x-api-key": key} if key else {}),
    parser=MessagesParser,
    # It lists 20 models unless a request wants more; this is the most.
    list_parameters={"limit": "1000"},
)
