"""The parameters of a request that have members of their own."""

from typing import Any, Literal

import msgspec

from chatapi.wire import parameters
from chatapi.wire.invalid_request import Violation

_Summary = Literal["auto", "concise", "detailed"]


class FlatJsonSchema(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="json_schema"):
    """Answers follow a JSON schema."""

    name: parameters.ToolName
    schema: dict[str, Any]
    description: parameters.Description | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The form of the answer's text."""

    format: parameters.TextFormat | parameters.JsonObjectFormat | FlatJsonSchema | None = None
    verbosity: parameters.Level | None = None

    @property
    def chat_format(self) -> parameters.ResponseFormat | None:
        """Return the format as chat completions have it."""
        if isinstance(self.format, FlatJsonSchema):
            schema = self.format
            return parameters.JsonSchemaFormat(
                parameters.JsonSchema(schema.name, schema.description, schema.schema, schema.strict)
            )
        return None if isinstance(self.format, parameters.TextFormat) else self.format


class ReasoningOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the model reasons, and the form in which its reasoning is sent."""

    effort: parameters.ReasoningEffort | None = None
    summary: _Summary | None = None
    generate_summary: _Summary | None = None
    # Accepted without effect: chat completions have no such parameters.
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: parameters.ShortText | None = None


class CacheOptions(parameters.PromptCacheOptions, frozen=True):
    """How prompts are cached."""

    prewarm: bool = False
    # It asks for a diagnosis in the response; chat completions have none.
    comparison_response_id: str | None = None

    def __post_init__(self) -> None:
        # The client would pay for an answer that it does not want.
        if self.prewarm:
            raise Violation("prewarm", "an answer is always generated here", "unsupported_parameter")

    @property
    def as_chat(self) -> parameters.PromptCacheOptions:
        """The options as chat completions have them."""
        return parameters.PromptCacheOptions(self.mode, self.ttl)


class ResponsesStreamOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of a stream, without effect: no `obfuscation` is ever added."""

    include_obfuscation: bool | None = None
