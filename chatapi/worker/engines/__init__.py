"""Engines: code that produces a generation's deltas. An engine is one async method; adding one: README.md."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chatapi.wire.deltas import AnyDelta, Failed
from chatapi.wire.generation_request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an upstream may take, each in ms."""

    connect_ms: int = 5_000
    first_delta_ms: int = 120_000
    between_deltas_ms: int = 60_000
    total_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Target:
    """One way to serve a model, as an engine needs to know it: a deployment's values without the database."""

    engine: str
    name: str = ""
    upstream_model: str = ""
    base_url: str = ""
    api_key_env: str = ""
    timeouts: Timeouts = field(default_factory=Timeouts)
    extra_parameters: frozenset[str] = frozenset()
    """Request parameters beyond OpenAI's that this deployment may receive."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an engine is asked to do: one request (so many bytes of JSON), for one target, at most
    `max_output_tokens` per choice.
    """

    generation_id: str
    request: GenerationRequest
    target: Target
    max_output_tokens: int
    request_bytes: int = 0
    max_prompt_tokens: int | None = None
    """What fits the model's context, where that is known."""


class EngineError(Exception):
    """The engine could not go on.

    `failure` is what the client is told (never an upstream's own HTML, key or address);
    `is_retryable` says that another deployment may be tried, as long as nothing was published yet.
    """

    def __init__(self, failure: Failed, *, is_retryable: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.is_retryable = is_retryable


class Engine(Protocol):
    """Produces the deltas of one call.

    Yields batches (all that one read gave), in this order: `Started` once, first; content; one `Finished` per
    choice; then, when the upstream told it, one `Usage`. Raises `EngineError` for every failure, an end
    without `Finished` among them. Cancelling the consumer closes the upstream at once.
    """

    def stream(self, call: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        """The call's batches of deltas, as they come. The caller closes the generator, which closes the
        upstream.
        """
        ...

    async def close(self) -> None:
        """Give back connections; called once when the process ends."""
        ...
