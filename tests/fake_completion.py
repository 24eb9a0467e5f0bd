"""The content of the fake upstream's answers, by a script and a request; `fake_upstream.py` sends it."""

import struct
from base64 import b64encode
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any, Literal

import msgspec

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
]
ARGUMENTS = ['{"', "city", '":"', " the", '"}']


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one model behaves; `*_after` and the other positions count the tokens sent before it happens."""

    # what it says
    tokens: int = 5
    reasoning: int = 0
    """So many tokens of reasoning come before the text."""
    reasoning_field: str = "reasoning_content"
    refusal: bool = False
    tool_calls: int = 0
    """So many tool calls instead of text."""
    turns: list[tuple[str, str]] = []
    """The name and arguments of the tool that is called in each turn of an agent, before it says its text."""
    function_call: bool = False
    """One call in the deprecated form instead of text."""
    prompt_tokens: int = 7
    told_tokens: int | None = None
    """The count that the usage has, which may differ from what was sent."""
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """The usage tells these three if any is there, the last one under Anthropic's name."""
    finish_reason: str = ""
    """Other than what it would be; `none` leaves it out."""
    ignore_max_tokens: bool = False
    raw: str | None = None
    """The whole body of the answer instead of all this, as it is."""
    # how fast
    ttft_ms: float = 0
    rate: float = 0
    """Tokens a second; 0 is as fast as they are taken."""
    # how it is refused
    status: int = 200
    error_message: str = "refused by script"
    error_type: str = "invalid_request_error"
    error_code: str | None = None
    retry_after: str | None = None
    retry_after_ms: str | None = None
    fail_first: int | None = None
    """The number of calls that are refused, the first ones."""
    fail_share: float = 1.0
    """Only this share of the calls is refused, evenly."""
    per_second: int | None = None
    """The calls of a second that are served; those beyond are refused."""
    html: bool = False
    redirect: str | None = None
    # how it breaks off
    stall_after: int | None = None
    stall_ms: float | None = None
    """How long that silence lasts; None is for ever."""
    rst_after: int | None = None
    fin_after: int | None = None
    error_frame: int | None = None
    bad_json: int | None = None
    huge_frame: int | None = None
    huge_bytes: int = 2 << 20
    flat_error: bool = False
    """The error frame is `event: error` with a flat object."""
    fin_without_done: bool = False
    # how it deviates
    crlf: bool = False
    comments: bool = False
    split: int = 0
    """So many bytes a write, wherever that cuts."""
    as_json: bool = False
    """Ignores `stream`."""
    null_choices: bool = False
    no_index: bool = False
    repeat_role: bool = False
    tool_index: Literal["right", "zero", "none"] = "right"
    no_tool_ids: bool = False
    repeat_tool_names: bool = False
    whole_tool_calls: bool = False
    """Each call in one delta."""
    no_usage: bool = False
    zero_usage: bool = False
    usage_on_finish: bool = False
    usage_every_chunk: bool = False
    usage_after_done: bool = False
    dimensions: int = 4
    """Of embeddings, unless the request says otherwise."""
    ignore_base64: bool = False
    usage_by_choice: bool = False
    """Each choice ends by itself, and its own usage comes right behind it, as llama-server does."""


def embeddings(script: Script, body: dict[str, Any], inputs: list[Any]) -> dict[str, Any]:
    """Return one vector for each input, filled with its number."""
    dimensions = body.get("dimensions") or script.dimensions
    vectors: list[Any] = [[float(index)] * dimensions for index in range(len(inputs))]
    if body.get("encoding_format") == "base64" and not script.ignore_base64:
        vectors = [b64encode(struct.pack(f"<{dimensions}f", *vector)).decode() for vector in vectors]
    data = [
        {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
    ]
    tokens = script.prompt_tokens
    usage = {} if script.no_usage else {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return {"object": "list", "model": body["model"], "data": data, **usage}


def error(script: Script) -> dict[str, Any]:
    """Return the error object that the script refuses with."""
    return {
        "error": {
            "message": script.error_message,
            "type": script.error_type,
            "param": None,
            "code": script.error_code,
        }
    }


class Completion:
    """The content of an answer: a pure function of the script and the request."""

    def __init__(self, script: Script, body: dict[str, Any], *, is_text: bool) -> None:
        self.script = script
        self.body = body
        self.is_text = is_text
        self.n = body.get("n") or 1
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        self.turn = _next_turn(script, body)
        deltas = list(_deltas(script)) if self.turn is None else [self.turn]
        self.deltas = deltas if limit is None or script.ignore_max_tokens else deltas[:limit]
        self.finish_reason = self._finish_reason(is_whole=len(self.deltas) == len(deltas))
        self.total_tokens = len(self.deltas) * self.n
        self.sends_usage = (
            bool((body.get("stream_options") or {}).get("include_usage")) and not script.no_usage
        )

    def chunk(self, choices: list[dict[str, Any]] | None, **more: Any) -> dict[str, Any]:
        """Return a chunk around choices."""
        kind = "text_completion" if self.is_text else "chat.completion.chunk"
        return {
            "id": "up-1",
            "object": kind,
            "created": 1700000000,
            "system_fingerprint": "fp_fake",
            "choices": choices,
            **more,
        }

    def choice(self, index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """Return a choice of a chunk, as chat or as text."""
        text = delta.get("content") or ""
        said = {"text": text} if self.is_text else {"delta": delta}
        logprobs = self._logprobs(text) if text and self.body.get("logprobs") else None
        numbered = {} if self.script.no_index else {"index": index}
        return {**numbered, **said, "logprobs": logprobs, "finish_reason": finish_reason}

    def usage(self, tokens: int) -> dict[str, Any]:
        """Return the usage object for this number of tokens."""
        script = self.script
        prompt, completion = (
            (0, 0)
            if script.zero_usage
            else (script.prompt_tokens, tokens if script.told_tokens is None else script.told_tokens)
        )
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if script.cached_tokens or script.cache_write_tokens:
            details = {"cached_tokens": script.cached_tokens, "cache_write_tokens": script.cache_write_tokens}
            usage["prompt_tokens_details"] = details
            usage["cache_creation"] = {"ephemeral_1h_input_tokens": script.cache_write_1h_tokens}
        return usage

    def whole(self) -> dict[str, Any]:
        """Return the answer in one piece."""
        said: dict[str, Any] = (
            {"text": _joined(self.deltas, "content")}
            if self.is_text
            else {"message": _message(self.deltas, self.script) | (self.turn or {})}
        )
        if self.body.get("logprobs") and not self.is_text:
            each = [
                self._logprobs(delta["content"])["content"] for delta in self.deltas if "content" in delta
            ]
            said["logprobs"] = {"content": [token for tokens in each for token in tokens]}
        choices = [{"index": index, **said, "finish_reason": self.finish_reason} for index in range(self.n)]
        return self.chunk(choices, usage=self.usage(self.total_tokens))

    def _finish_reason(self, *, is_whole: bool) -> str | None:
        if self.script.finish_reason:
            return None if self.script.finish_reason == "none" else self.script.finish_reason
        if not is_whole:
            return "length"
        return (
            "tool_calls"
            if self.script.tool_calls or self.turn
            else "function_call"
            if self.script.function_call
            else "stop"
        )

    def _logprobs(self, text: str) -> dict[str, Any]:
        if self.is_text:
            return {
                "tokens": [text],
                "token_logprobs": [-0.5],
                "top_logprobs": [{text: -0.5, " other": -1.5}],
                "text_offset": [0],
            }
        token = {"token": text, "logprob": -0.5, "bytes": list(text.encode())}
        return {"content": [{**token, "top_logprobs": [token]}], "refusal": None}


def _deltas(script: Script) -> Iterator[dict[str, Any]]:
    """Yield one delta for each token of a choice."""
    for word in islice(cycle(WORDS), script.reasoning):
        yield {script.reasoning_field: " " + word}
    if script.tool_calls:
        for number in range(script.tool_calls):
            yield from ({"tool_calls": [fragment]} for fragment in _fragments(script, number))
        return
    if script.function_call:
        yield from ({"function_call": fragment["function"]} for fragment in _fragments(script, 0))
        return
    for word in islice(cycle(WORDS), script.tokens):
        yield {"refusal" if script.refusal else "content": " " + word}


def _next_turn(script: Script, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the tool call of the conversation's current turn, or None after the last turn."""
    turn = sum(message["role"] == "tool" for message in body.get("messages", ()))
    if turn >= len(script.turns):
        return None
    name, arguments = script.turns[turn]
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": f"call_up_{turn}", "type": "function", "function": function}]}


def _fragments(script: Script, number: int) -> Iterator[dict[str, Any]]:
    """Yield the pieces of one tool call, a token each."""
    index = {"right": {"index": number}, "zero": {"index": 0}, "none": {}}[script.tool_index]
    identifier = {} if script.no_tool_ids else {"id": f"call_up_{number}"}
    name = {"name": "lookup"}
    first, *rest = ["".join(ARGUMENTS)] if script.whole_tool_calls else ARGUMENTS
    yield {**index, **identifier, "type": "function", "function": {**name, "arguments": first}}
    if not script.repeat_tool_names:
        identifier, name = {}, {}
    for piece in rest:
        yield {**index, **identifier, "function": {**name, "arguments": piece}}


def _message(deltas: list[dict[str, Any]], script: Script) -> dict[str, Any]:
    """Return the message that these deltas add up to."""
    message: dict[str, Any] = {"role": "assistant"}
    for field in ("content", "refusal", script.reasoning_field):
        message[field] = _joined(deltas, field) or None
    whole = msgspec.structs.replace(script, whole_tool_calls=True)
    calls = [call for number in range(script.tool_calls) for call in _fragments(whole, number)]
    if calls:
        message["tool_calls"] = calls
    if script.function_call:
        message["function_call"] = next(_fragments(whole, 0))["function"]
    return message


def _joined(deltas: list[dict[str, Any]], field: str) -> str:
    return "".join(delta.get(field, "") for delta in deltas)
