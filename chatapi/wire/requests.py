"""Encodes requests for jobs, and finds the parameters that a dialect or a deployment refuses or ignores."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest

__all__ = ["InvalidRequest", "from_bytes", "ignored_parameters", "to_bytes"]
__all__ += ["refuse_idle_parameters", "refuse_remote_media"]


class Facts(Protocol):
    """The properties that the rules below read, of a request or of its summary."""

    @property
    def stream(self) -> bool:
        """Whether the client asks for a stream."""

    @property
    def idle_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that have no effect without a stream, if there is none."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the parameters that no deployment can receive."""

    @property
    def extras(self) -> Iterable[str]:
        """Names of the engine parameters that were sent."""

    @property
    def remote_media_param(self) -> str | None:
        """The client's name for the first remote picture."""


def refuse_remote_media(request: Facts) -> None:
    """Raise `InvalidRequest` if the request has a picture that the upstream would have to fetch."""
    if param := request.remote_media_param:
        message = f"Invalid value for '{param}': remote pictures are not allowed here, send a data: URL."
        raise InvalidRequest(message, param, "unsupported_media", is_stream=request.stream)


def refuse_idle_parameters(request: Facts) -> None:
    """Raise `InvalidRequest` for the first parameter that only affects streams, if no stream is requested.

    OpenAI refuses these parameters; OpenToken ignores them (`Dialect.refuses_idle_parameters`).
    """
    if request.idle_parameters:
        name = request.idle_parameters[0]
        message = f"The '{name}' parameter is only allowed when 'stream' is enabled."
        raise InvalidRequest(message, name)


def ignored_parameters(request: Facts, extra_parameters: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the parameters that a deployment with these `extra_parameters` does not get."""
    return request.ignored + tuple(name for name in request.extras if name not in extra_parameters)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(GenerationRequest)


def to_bytes(request: GenerationRequest) -> bytes:
    """Return the request as JSON, for a job."""
    return _encoder.encode(request)


def from_bytes(data: bytes) -> GenerationRequest:
    """Return the request that `to_bytes` wrote, here or in the release before.

    Raises `msgspec.DecodeError` for any other tag, such as that of a later release.
    """
    return _decoder.decode(data)
