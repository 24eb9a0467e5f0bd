"""Custom tools for upstreams that know only functions: vLLM, llama-server, Ollama, Anthropic and others.

They get a function with one string instead; its calls are turned back into calls of the custom tool while the
arguments come. These upstreams don't know the choice `allowed_tools` either: they get only the allowed tools.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from chatapi.wire.deltas import AnyDelta, Finished, ToolCall
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.messages import AssistantMessage, CustomCall, FunctionCall, Message
from chatapi.wire.parameters import (
    AllowedTools,
    AllowedToolsChoice,
    CustomChoice,
    FunctionChoice,
    ToolChoice,
    custom_tools,
    with_functions_only,
)
from chatapi.wire.prompts import Messages

# The beginning of that function's arguments, and the most characters that are read to find it.
_BEGIN: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_SQUEEZED_BEGIN: Final = '{"input":"'
_MAX_BEGIN_CHARS: Final = 64
# The arguments of a call without an input, which many servers write, and `ToolCallReader`.
_NO_INPUT: Final = "{}"
# Long arguments are read in pieces of this size.
_PIECE_CHARS: Final = 64 << 10
# The complete part of a JSON string: up to its closing quote, or to an escape that may continue.
_WHOLE: Final = re.compile(r'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\u(?![0-9a-fA-F]{0,3}\Z)|\\[^u])*+', re.DOTALL)
# A backslash that begins no JSON escape; escaped backslashes are removed first.
_NO_ESCAPE: Final = re.compile(r'\\(?!["/bfnrt]|u[0-9a-fA-F]{4})')
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def as_functions(request: GenerationRequest) -> GenerationRequest:
    """Return the request with functions instead of its custom tools."""
    prompt = request.prompt
    if isinstance(prompt, Messages):
        prompt = Messages([_with_functions(message) for message in prompt.messages])
    if not request.tools:
        return replace(request, prompt=prompt)
    functions = with_functions_only(msgspec.json.encode(request.tools))
    tools, choice = _functions_to_call(functions, request.tool_choice)
    return replace(request, prompt=prompt, tools=msgspec.Raw(tools), tool_choice=choice)


def _with_functions(message: Message) -> Message:
    if not isinstance(message, AssistantMessage) or not message.tool_calls:
        return message
    # `replace` is not typed: this annotation makes sure that all calls are functions.
    calls: list[FunctionCall] = [
        call.as_function if isinstance(call, CustomCall) else call for call in message.tool_calls
    ]
    return replace(message, tool_calls=calls)


def _functions_to_call(tools: bytes, choice: ToolChoice | None) -> tuple[bytes, ToolChoice | None]:
    """Return the functions that the choice allows, and the choice for upstreams that know only functions."""
    match choice:
        case CustomChoice():
            return tools, FunctionChoice(choice.custom)
        case AllowedToolsChoice():
            allowed = _allowed(tools, choice.allowed_tools)
            return (allowed, choice.allowed_tools.mode) if allowed else (tools, choice)
        case FunctionChoice() | "none" | "auto" | "required" | None:
            return tools, choice
        case _:
            assert_never(choice)


class _Named(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Named


def _allowed(tools: bytes, choice: AllowedTools) -> bytes:
    """Return the functions that may be called; empty if the choice names none of them."""
    called = [entry.get("function") or entry.get("custom") for entry in choice.tools]
    # A client may write anything as a name.
    names = {name for each in called if isinstance(each, dict) and isinstance(name := each.get("name"), str)}
    every = zip(
        msgspec.json.decode(tools, type=list[_Tool]),
        msgspec.json.decode(tools, type=list[msgspec.Raw]),
        strict=True,
    )
    allowed = [raw for tool, raw in every if tool.function.name in names]
    return msgspec.json.encode(allowed) if allowed else b""


class CustomCalls:
    """Turns calls of these functions back into calls of custom tools."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._inputs: dict[tuple[int, int], _Input] = {}
        """By the indexes of the choice and of its call."""

    def expect(self, request: GenerationRequest) -> None:
        """Remember the names of the request's custom tools, before `as_functions` replaces them."""
        if request.tools:
            self._names = {tool.custom.name for tool in custom_tools(msgspec.json.encode(request.tools))}

    def translate(self, batch: Sequence[AnyDelta]) -> Sequence[AnyDelta]:
        """Return the batch with calls of custom tools; an input may begin only in a later batch."""
        if not self._names:
            return batch
        found: list[AnyDelta] = []
        for delta in batch:
            if isinstance(delta, ToolCall):
                found += self._call(delta)
                continue
            if isinstance(delta, Finished):
                found += self._ends(delta.index)
            found.append(delta)
        return found

    def _call(self, delta: ToolCall) -> list[AnyDelta]:
        key = delta.index, delta.call_index
        if delta.name in self._names and delta.kind == "function":
            self._inputs[key] = _Input()
        if (input_ := self._inputs.get(key)) is None:
            return [delta]
        text = input_.add(delta.arguments)
        return [replace(delta, arguments=text, kind="custom")] if text or delta.name else []

    def _ends(self, index: int) -> list[AnyDelta]:
        """Return the rests of a choice's inputs."""
        keys = [key for key in self._inputs if key[0] == index]
        rests = [(key, self._inputs.pop(key).end()) for key in keys]
        return [
            ToolCall(call_index, rest, index=index, kind="custom") for (_, call_index), rest in rests if rest
        ]


class _Input:
    """Reads the string out of `{"input": "…"}`, which comes in pieces. Arguments of another form are the
    input.
    """

    def __init__(self) -> None:
        self._rest = ""
        """Characters that are read with the next piece."""
        self._high = ""
        """The first half of a surrogate pair."""
        self._is_string: bool | None = None
        """None: not known yet."""
        self._has_ended = False

    def add(self, arguments: str) -> str:
        """Return the text that these arguments complete."""
        # In pieces, because no other thread runs while a pattern is matched.
        pieces = (arguments[start : start + _PIECE_CHARS] for start in range(0, len(arguments), _PIECE_CHARS))
        return "".join(map(self._add, pieces))

    def _add(self, piece: str) -> str:
        self._rest += piece
        if self._is_string is None:
            self._begin()
        if self._is_string is None:
            return ""
        if self._is_string:
            return self._string()
        return self._take_rest()

    def end(self) -> str:
        """Return the rest; an incomplete escape is dropped, and so is an object without an input."""
        has_none = self._is_string is None and "".join(self._rest.split()) == _NO_INPUT
        return "" if self._is_string or has_none else self._take_rest()

    def _begin(self) -> None:
        """Find out the form of the arguments, if enough characters have come."""
        if match := _BEGIN.match(self._rest):
            self._is_string, self._rest = True, self._rest[match.end() :]
            return
        squeezed = "".join(self._rest[:_MAX_BEGIN_CHARS].split())
        is_beginning = _SQUEEZED_BEGIN.startswith(squeezed) or squeezed == _NO_INPUT
        if len(self._rest) > _MAX_BEGIN_CHARS or not is_beginning:
            self._is_string = False

    def _take_rest(self) -> str:
        rest, self._rest = self._rest, ""
        return rest

    def _string(self) -> str:
        """Return the text of the string's complete part."""
        if self._has_ended:
            self._rest = ""
            return ""
        match = _WHOLE.match(self._rest)
        assert match is not None, "it matches nothing, too"
        self._rest = self._rest[match.end() :]
        self._has_ended = self._rest.startswith('"')
        text = self._high + _decoded(match[0])
        self._high = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" and not self._has_ended else ""
        text = text.removesuffix(self._high)
        if _SURROGATE.search(text):
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text


def _decoded(literal: str) -> str:
    """Return the text of the inside of a JSON string."""
    if "\\" in literal:
        # Models write escapes that JSON does not have, and control characters without an escape.
        parts = (_NO_ESCAPE.sub(r"\\\\", part) for part in literal.split(r"\\"))
        literal = r"\\".join(parts)
    text: str = json.loads(f'"{literal}"', strict=False)
    return text
