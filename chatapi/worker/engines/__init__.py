"""Engines, which produce the deltas of a generation. chatapi/README.md says how to add one."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chatapi.wire.deltas import AnyDelta, Failed
from chatapi.wire.generation_request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The time limits of an upstream."""

    connect_ms: int = 5_000
    first_delta_ms: int = 120_000
    between_deltas_ms: int = 60_000
    total_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment as an engine needs it, without the database."""

    engine: str
    name: str = ""
    upstream_model: str = ""
    base_url: str = ""
    # Left out of the representation, which may get into a log.
    api_key: str | None = field(default="", repr=False)
    """Empty if the upstream needs none; None if this process does not have it."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    extra_parameters: frozenset[str] = frozenset()
    """Request parameters outside OpenAI's reference that this deployment may receive."""
    streaming: str = "always"
    """The requests for which the deployment is asked for a stream, a value of `models.Streaming`."""

    def is_streamed(self, request: GenerationRequest) -> bool:
        """Return whether the request asks this deployment for a stream, and not for one JSON document."""
        return request.can_stream and (
            self.streaming == "always"
            or (self.streaming == "without_logprobs" and request.logprobs_count is None)
            or (self.streaming == "as_requested" and request.stream)
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One request for one target."""

    generation_id: str
    request: GenerationRequest
    target: Target
    max_output_tokens: int
    """The most output tokens of each choice."""
    request_bytes: int = 0
    """The length of the request as JSON."""
    max_prompt_tokens: int | None = None
    """The most prompt tokens that the model's context has room for; None: unknown."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that tell the upstream the attempt's span."""


class EngineError(Exception):
    """The engine could not go on.

    `failure` is for the client, without an upstream's HTML, key or URL. If `is_retryable`, another deployment
    may be tried as long as nothing was published. `cause` is for the log.
    """

    def __init__(self, failure: Failed, *, is_retryable: bool = False, cause: str = "") -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.is_retryable = is_retryable
        self.cause = cause


class Engine(Protocol):
    """Produces the deltas of calls."""

    def stream(self, call: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        """Yield the call's deltas, all of one read in a batch, in this order:

        1. one `Started`,
        2. content,
        3. one `Finished` for each choice,
        4. one `Usage` if the upstream sent it.

        Raises `EngineError` for every failure, such as an end without `Finished`. The caller closes the
        generator, which closes the upstream at once.
        """
        ...

    async def close(self) -> None:
        """Close connections; called once when the process ends."""
        ...
