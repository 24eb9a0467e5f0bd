"""A request as a web process needs it: validated, ready to be sent to a worker, and the few facts that
admission asks for.

`parse` is all that is done with a body. Small bodies are parsed on the event loop, large ones by
`parser_process.py`; so what comes out is cheap to pass on, and nobody has to decode or encode the request
again.
"""

import hashlib
from typing import Final

import msgspec

from chatapi.wire import requests
from chatapi.wire.requests import ChatRequest, TextRequest

CHAT: Final = "chat.completions"
TEXT: Final = "completions"
"""The endpoints, as a generation's row names them."""


class RequestSummary(msgspec.Struct, frozen=True, array_like=True):
    """What admission, limits and the answer's form depend on; never the prompt."""

    model: str
    stream: bool
    include_usage: bool
    has_stream_options: bool
    choices_count: int
    sampled_count: int
    max_output_tokens: int | None
    prompts_count: int
    """Prompts that may each fill the model's context window."""
    prompt_bytes: int | None
    """Upper bound of the prompts' tokens; None for what can't be measured, media and web pages."""
    remote_media_param: str | None
    """The path of the first picture that the upstream would have to fetch."""
    ignored: tuple[str, ...]
    extras: tuple[str, ...]
    """Names of the engine parameters that were sent."""
    digest: str
    """SHA-256 of endpoint and content, in hex: two requests with the same digest ask for the same."""

    def remote_media(self) -> tuple[str, ...]:
        """The path of the first remote picture's address, if there is one."""
        return () if self.remote_media_param is None else (self.remote_media_param,)

    def prompt_tokens_bound(self, context_window: int) -> int:
        """The most prompt tokens that can be charged."""
        window_tokens = self.max_prompt_tokens(context_window)
        return window_tokens if self.prompt_bytes is None else min(self.prompt_bytes, window_tokens)

    def max_prompt_tokens(self, context_window: int) -> int:
        """The most prompt tokens that any upstream can have used: each prompt may fill the context window."""
        return context_window * self.prompts_count


class ParsedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A valid request."""

    summary: RequestSummary
    content: bytes
    """The request as `requests.from_bytes` reads it."""


def parse(body: bytes, endpoint: str, default_model: str | None, *, is_ticket: bool = False) -> ParsedRequest:
    """The request that `body` holds, whose pictures may be remote; raises `InvalidRequest`.

    The content of a ticket's request asks for a stream, whatever the body asks for; the summary is the
    body's.
    """
    request: ChatRequest | TextRequest
    if endpoint == CHAT:
        request = requests.parse_chat(body, default_model, remote_media_allowed=True)
    else:
        request = requests.parse_text(body, default_model)
    return _parsed(request, endpoint, msgspec.structs.replace(request, stream=True) if is_ticket else request)


def read(content: bytes, endpoint: str) -> ParsedRequest:
    """The parsed request with this content, which another version may have validated; raises
    `msgspec.DecodeError`.
    """
    request = requests.from_bytes(content)
    return _parsed(request, endpoint, request)


def _parsed(
    request: ChatRequest | TextRequest, endpoint: str, kept: ChatRequest | TextRequest
) -> ParsedRequest:
    content = requests.to_bytes(kept)
    prompts_count = len(request.prompts) if isinstance(request, TextRequest) else 1
    is_measured = isinstance(request, TextRequest) or not (
        request.has_media or request.web_search_options is not None
    )
    summary = RequestSummary(
        model=request.model,
        stream=request.stream,
        include_usage=request.include_usage,
        has_stream_options=request.has_stream_options,
        choices_count=request.choices_count,
        sampled_count=request.sampled_count,
        max_output_tokens=request.max_output_tokens,
        prompts_count=prompts_count,
        prompt_bytes=request.prompt_bytes if is_measured else None,
        remote_media_param=next(iter(request.remote_media()), None),
        ignored=request.ignored,
        extras=tuple(request.extras),
        digest=hashlib.sha256(endpoint.encode() + b"\n" + content).hexdigest(),
    )
    return ParsedRequest(summary, content)
