"""Ends the spans of a run and its attempts, by OpenTelemetry's conventions for generative AI."""

import time
from typing import Final

from chatapi.tracing import NO_SPAN, Span
from chatapi.wire.deltas import Usage
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.runs.run_usage import RunUsage
from usage.books.ledger import Claimed, Settlement
from usage.pricing import Tokens

# The error of a run that did not settle: the reaper will, or another process has taken it over.
UNSETTLED: Final = "not_settled"


def end_attempt(span: Span, usage: RunUsage, error_code: str, began_ms: int) -> None:
    """End the span of an attempt that began `began_ms` after its run; an empty code: it has not failed."""
    if span is NO_SPAN:
        return
    attributes: dict[str, str | int | float | list[str]] = {}
    if usage.reported is not None:
        attributes |= _tokens(usage.reported)
    if usage.finished:
        attributes["gen_ai.response.finish_reasons"] = [
            usage.finished[index].finish_reason for index in sorted(usage.finished)
        ]
    if usage.first_token_ms is not None and usage.first_token_ms >= began_ms:
        attributes["gen_ai.response.time_to_first_chunk"] = (usage.first_token_ms - began_ms) / 1_000
        ago_ms = usage.total_ms - usage.first_token_ms
        span.add_event("first_token", time.time_ns() - ago_ms * 1_000_000)
    if error_code:
        attributes["error.type"] = error_code
    span.end(attributes, is_failed=bool(error_code))


def end_run(
    span: Span,
    requested: Claimed,
    answering: str,
    settlement: Settlement | None,
    request: GenerationRequest | None,
) -> None:
    """End the span of a run; `answering` is the model that was asked last."""
    if span is NO_SPAN:
        return
    attributes: dict[str, str | int] = {
        "chatapi.generation.id": requested.id.hex,
        "gen_ai.request.model": requested.model,
    }
    if request is not None:
        attributes["gen_ai.operation.name"] = request.prompt.operation
    error_code = UNSETTLED
    if settlement is not None:
        attributes |= _tokens(settlement.tokens) | {"chatapi.outcome": settlement.outcome.value}
        if settlement.tokens.completion_tokens:
            attributes["gen_ai.response.model"] = answering
        error_code = settlement.error_code
    if error_code:
        attributes["error.type"] = error_code
    span.end(attributes, is_failed=bool(error_code))


def _tokens(used: Usage | Tokens) -> dict[str, int]:
    """Return the attributes of the counts that are known."""
    counts = {
        "input_tokens": used.prompt_tokens,
        "output_tokens": used.completion_tokens,
        "cache_read.input_tokens": used.cached_tokens,
        "cache_creation.input_tokens": used.cache_write_tokens,
        "reasoning.output_tokens": used.reasoning_tokens,
    }
    return {f"gen_ai.usage.{name}": count for name, count in counts.items() if count is not None}
