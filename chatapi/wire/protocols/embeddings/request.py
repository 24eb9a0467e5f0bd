"""The body of `POST /v1/embeddings` (OpenAI's API reference, "Create embeddings")."""

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from chatapi.wire import caps, parameters, request_body
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import Violation
from chatapi.wire.prompts import Inputs, Prompts, check_prompts

NAME: Final = "embeddings"


class EmbeddingsRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of `POST /v1/embeddings`. Do not reorder fields: the digest hashes them in this order."""

    model: parameters.ModelName
    input: str | Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1, le=caps.MAX_DIMENSIONS)] | None = None
    user: parameters.User | None = None
    models: Any = None

    extras: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()

    rewritten: ClassVar = frozenset({"input", "encoding_format", "dimensions"})
    # In other protocols it lets another model answer.
    refused: ClassVar = frozenset({"models"})

    def __post_init__(self) -> None:
        if self.models is not None:
            allowed = "it is not supported for embeddings: vectors of different models can't be compared"
            raise Violation("models", allowed, "unsupported_parameter")
        if self.input == "":
            raise Violation("input", "expected a text that is not empty")
        if isinstance(self.input, list):
            check_prompts("input", self.input, caps.MAX_INPUTS)
            if "" in self.input:
                place = f"input[{self.input.index('')}]"
                raise Violation(place, "expected a text that is not empty")
        most = caps.MAX_VECTOR_VALUES // (self.dimensions or 1)
        if (count := Inputs(self.input).count) > most:
            allowed = f"expected at most {caps.MAX_VECTOR_VALUES // count} for {count} inputs"
            raise Violation("dimensions", allowed)

    def generation_request(self) -> GenerationRequest:
        """Return the request of this body; its answer has no output tokens."""
        prompt = Inputs(self.input, self.dimensions)
        return GenerationRequest(
            **request_body.same_members(self),
            prompt=prompt,
            max_tokens=0,
            digest=request_body.digest(NAME, self),
            context={"inputs": prompt.count, "encoding_format": self.encoding_format},
        )


def parse(body: bytes, default_model: str | None = None, *, is_ticket: bool = False) -> GenerationRequest:
    """Return the request in `body`; see `protocol.Parser`."""
    return request_body.read(body, EmbeddingsRequest, default_model).generation_request()
