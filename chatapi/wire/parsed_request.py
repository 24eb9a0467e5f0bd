"""A request as a web process needs it: validated, encoded for a worker, and with a summary for admission and
for the answer.

Small bodies are parsed on the event loop, large ones by `parser_process.py`. The web process never decodes or
encodes the request again.
"""

import msgspec

from chatapi.wire import request_body, requests
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols import PROTOCOLS, Protocol
from chatapi.wire.upstream import anthropic_request


class RequestSummary(msgspec.Struct, frozen=True, array_like=True):
    """The properties of a request that admission, limits and the answer depend on, without the prompt."""

    model: str
    stream: bool
    include_usage: bool
    choices_count: int
    sampled_count: int
    max_output_tokens: int | None
    prompts_count: int
    """The number of prompts, each of which may fill the model's context window."""
    prompt_bytes: int | None
    """Upper bound of the prompts' tokens; None if there are media or web pages, which can't be measured."""
    remote_media_param: str | None
    """The client's name for the first picture that the upstream would have to fetch."""
    idle_parameters: tuple[str, ...]
    ignored: tuple[str, ...]
    extras: tuple[str, ...]
    """Names of the engine parameters that were sent."""
    digest: str
    """Equal for equal requests (`request_body.digest`)."""
    answer_bytes: int = 0
    """The approximate size of the part of the answer that is collected before it is sent; 0 for a few KB."""
    prompt_tokens: int | None = None
    """An estimate, for requests that only ask for it (`Protocol.counts_tokens`)."""
    is_background: bool = False
    """The client does not wait for the answer."""
    end_user: str | None = None
    """The client's name for its end user."""
    metadata: dict[str, str] | None = None
    """The client's own pairs, at most 16."""
    is_flex: bool = False
    """Other requests come first (`service_tier: "flex"`)."""
    models: tuple[str, ...] | None = None
    """Other models that may answer; None: those that the project has chosen."""
    not_for_anthropic: tuple[str, ...] = ()
    """Names of the parameters that Anthropic upstreams do not get, as in `GenerationRequest`."""

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
    state: bytes = b""
    """What later requests may refer to (`GenerationRequest.state`)."""


def parse(
    body: bytes,
    protocol: str,
    default_model: str | None,
    *,
    is_ticket: bool = False,
    is_resolved: bool = False,
    ignored_parameters: frozenset[str] = frozenset(),
) -> ParsedRequest:
    """Return the request in `body`; see `protocols.protocol.Parser`.

    `is_resolved`: the service has added the items that the client's body refers to. `ignored_parameters` are
    left out if one of them has an invalid value.
    """
    row = PROTOCOLS[protocol]
    try:
        request = _request(row, body, default_model, is_ticket=is_ticket, is_resolved=is_resolved)
    except InvalidRequest as error:
        if (error.param or "").partition(".")[0] not in ignored_parameters:
            raise
        body = request_body.without(body, ignored_parameters)
        request = _request(row, body, default_model, is_ticket=is_ticket, is_resolved=is_resolved)
    # No generation runs, so the content is not kept.
    if row.counts_tokens:
        return _parsed(request, b"", prompt_tokens=request.prompt_tokens_estimate)
    # The state is apart: it has its own key in Redis, and no worker needs it.
    state, request = request.state, msgspec.structs.replace(request, state=b"")
    return _parsed(request, requests.to_bytes(request), state)


def _request(
    row: Protocol, body: bytes, default_model: str | None, *, is_ticket: bool, is_resolved: bool
) -> GenerationRequest:
    if is_resolved:
        assert row.parse_resolved is not None, "its parser knows no references"
        return row.parse_resolved(body, default_model)
    return row.parse(body, default_model, is_ticket=is_ticket)


def read(content: bytes) -> ParsedRequest:
    """Return the parsed request with this content, which another version may have written.

    Raises `msgspec.DecodeError`.
    """
    return _parsed(requests.from_bytes(content), content)


def _parsed(
    request: GenerationRequest, content: bytes, state: bytes = b"", prompt_tokens: int | None = None
) -> ParsedRequest:
    summary = RequestSummary(
        model=request.model,
        stream=request.stream,
        include_usage=request.include_usage,
        choices_count=request.choices_count,
        sampled_count=request.sampled_count,
        max_output_tokens=request.max_output_tokens,
        prompts_count=request.prompt.count,
        # Measured here: admission never sees the decoded request.
        prompt_bytes=request.prompt_bytes if request.is_measurable else None,
        remote_media_param=request.remote_media_param,
        idle_parameters=request.idle_parameters,
        ignored=request.ignored,
        extras=request.extra_names,
        digest=request.digest,
        answer_bytes=request.prompt.answer_bytes,
        prompt_tokens=prompt_tokens,
        is_background=request.is_background,
        end_user=request.end_user,
        metadata=request.metadata,
        is_flex=request.service_tier == "flex",
        models=None if request.models is None else tuple(request.models),
        not_for_anthropic=anthropic_request.left_out(request),
    )
    return ParsedRequest(summary, content, state)
