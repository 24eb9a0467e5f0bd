"""The content of a choice without its division into pieces, so that two answers can be compared."""

from typing import Any

from chatapi.wire.completion import Choice

PLAIN = (
    "index",
    "text",
    "reasoning",
    "refusal",
    "annotations",
    "logprobs",
    "refusal_logprobs",
    "finish_reason",
)


def content_of(choice: Choice) -> dict[str, Any]:
    """Return all deltas as plain values."""
    calls = [(call.id, call.name, call.kind, call.arguments) for _, call in sorted(choice.tool_calls.items())]
    audio = choice.audio and (
        choice.audio.id,
        choice.audio.data,
        choice.audio.transcript,
        choice.audio.expires_at,
    )
    return {name: getattr(choice, name) for name in PLAIN} | {"tool_calls": calls, "audio": audio}
