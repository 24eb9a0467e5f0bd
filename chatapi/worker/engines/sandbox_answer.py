"""What the sandbox answers to a request under a script: the choices, token by token, without a clock. Pure.

The same request gets the same answer: whatever looks random comes from a checksum of the prompt, the
request's `seed` and the choice's index.
"""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import chain, cycle, islice, tee
from zlib import crc32

import msgspec

from chatapi.wire import tokens
from chatapi.wire.deltas import AnyDelta, Finished, FinishReason, Reasoning, Refusal, Text, ToolCall, ToolKind
from chatapi.wire.generation_request import GenerationRequest, Messages, Texts
from chatapi.wire.messages import FunctionMessage, TextPart, ToolMessage, UserMessage
from chatapi.wire.parameters import (
    AllowedToolsChoice,
    CustomChoice,
    CustomTool,
    FunctionChoice,
    FunctionDefinition,
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    Tool,
)
from chatapi.wire.upstream_logprobs import UNKNOWN_LOGPROB
from chatapi.worker.engines.sandbox_schema import SchemaError, instance
from chatapi.worker.engines.sandbox_script import Script, without_markers
from chatapi.worker.engines.sandbox_text import REFUSAL, Piece, at_most, logprob, prose, until_stop, words

CUSTOM_INPUT_TOKENS = 8

EXAMPLE_TOOL = FunctionTool(
    FunctionDefinition(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    )
)
"""Called when a script wants a tool call and the request brings no tool."""

_ANY_OBJECT = {"type": "object", "properties": {"sandbox": {"type": "string"}}}

Step = tuple[AnyDelta, int]
"""A delta, and how many completion tokens it costs."""


class UnusableSchemaError(ValueError):
    """A JSON schema of the request has no instance that the sandbox can find; `param` says which one."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that will be made, the same in every choice but for its id."""

    name: str
    arguments: Iterator[Piece]
    """To be copied and then read."""
    kind: ToolKind


class Answer:
    """One request's answer. `rounds` is read once; how it ended and what it cost is known afterwards."""

    def __init__(self, request: GenerationRequest, script: Script, max_output_tokens: int) -> None:
        self.choices_count = request.choices_count
        self.finished: list[Finished] = []
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        speaker = (
            ChatSpeaker(request, script)
            if isinstance(request.prompt, Messages)
            else TextSpeaker(request, request.prompt, script)
        )
        self._choices = [
            _capped(speaker.steps(index), max_output_tokens, script.finish or speaker.finish_reason)
            for index in range(self.choices_count)
        ]

    def rounds(self) -> Iterator[list[AnyDelta]]:
        """One delta of each choice that still goes on, in the order of their indices, again and again."""
        ended: dict[int, FinishReason] = {}
        while len(ended) < len(self._choices):
            deltas = []
            for index, choice in enumerate(self._choices):
                if index in ended:
                    continue
                try:
                    delta, cost = next(choice)
                except StopIteration as end:
                    ended[index] = end.value
                    continue
                self._charge(delta, cost)
                deltas.append(delta)
            if deltas:
                yield deltas
        self.finished = [Finished(ended[index], index) for index in sorted(ended)]

    def _charge(self, delta: AnyDelta, cost: int) -> None:
        self.completion_tokens += cost
        if isinstance(delta, Reasoning):
            self.reasoning_tokens += cost


class ChatSpeaker:
    """Says what a chat request and a script ask for; raises `UnusableSchemaError` when it is made, not later."""

    def __init__(self, request: GenerationRequest, script: Script) -> None:
        self._request = request
        self._script = script
        self._seed = _seed(request)
        self._top = request.logprobs_count
        wanted = _tools_to_call(request, script)
        calls = {id(tool): self._call(tool) for tool in wanted}
        self._calls = [calls[id(tool)] for tool in wanted]
        self._alike = None if self._calls else self._said_alike()
        self.finish_reason: FinishReason = "tool_calls" if self._calls else "stop"

    def steps(self, index: int) -> Iterator[Step]:
        """Choice `index`: reasoning, then tool calls or a refusal or text."""
        seed = self._seed + index
        for text, cost in at_most(self._script.reasoning_tokens, prose(~seed)):
            yield Reasoning(text, index), cost
        if self._calls:
            yield from self._call_steps(index)
        elif self._script.says == "refusal":
            yield from _said(Refusal, tokens.split(REFUSAL), index, self._top)
        else:
            yield from _said(
                Text, until_stop(self._request.stop_sequences, self._text(seed)), index, self._top
            )

    def _text(self, seed: int) -> Iterable[Piece]:
        return at_most(self._script.tokens, prose(seed)) if self._alike is None else copy(self._alike)

    def _said_alike(self) -> Iterator[Piece] | None:
        """What all choices say, if they say the same."""
        structured = self._structured()
        if structured is not None:
            return _shared(structured)
        return (
            _shared(without_markers(scripting_text(self._request))) if self._script.says == "echo" else None
        )

    def _structured(self) -> str | None:
        """The JSON text that `response_format` asks for."""
        wanted = self._request.response_format
        if isinstance(wanted, JsonSchemaFormat):
            return _json_text(
                wanted.json_schema.schema or _ANY_OBJECT, self._seed, "response_format.json_schema.schema"
            )
        return (
            _json_text(_ANY_OBJECT, self._seed, "response_format")
            if isinstance(wanted, JsonObjectFormat)
            else None
        )

    def _call(self, tool: Tool) -> Call:
        if isinstance(tool, CustomTool):
            said = at_most(CUSTOM_INPUT_TOKENS, prose(self._seed))
            return Call(tool.custom.name, _shared("".join(text for text, _ in said)), "custom")
        function = tool.function
        return Call(
            function.name,
            _shared(_json_text(function.parameters or _ANY_OBJECT, self._seed, "tools")),
            "function",
        )

    def _call_steps(self, index: int) -> Iterator[Step]:
        for call_index, call in enumerate(self._calls):
            call_id = "call_" + hashlib.sha256(b"%d:%d:%d" % (self._seed, index, call_index)).hexdigest()[:24]
            yield ToolCall(call_index, "", call_id, call.name, index, call.kind), tokens.count(call.name)
            for text, cost in copy(call.arguments):
                yield ToolCall(call_index, text, index=index, kind=call.kind), cost


class TextSpeaker:
    """Continues the prompts of a text request."""

    finish_reason: FinishReason = "stop"

    def __init__(self, request: GenerationRequest, prompt: Texts, script: Script) -> None:
        self._request = request
        self._echo = prompt.echo
        self._script = script
        self._seed = _seed(request)
        prompts = [_prompt_text(prompt) for prompt in prompt.prompts]
        self._prompts = list(map(_shared, prompts))
        self._echoes = (
            [_shared(without_markers(prompt)) for prompt in prompts] if script.says == "echo" else []
        )

    def steps(self, index: int) -> Iterator[Step]:
        """Choice `index`: the prompt when it is to be echoed, which costs nothing, then the completion."""
        place = index // (self._request.n or 1)
        top = self._request.logprobs_count
        if self._echo:
            echoed = _said(Text, ((text, 0) for text, _ in copy(self._prompts[place])), index, top)
            yield from map(_without_first_logprob, echoed, chain([True], cycle([False])))
        yield from _said(
            Text, until_stop(self._request.stop_sequences, self._continuation(place, index)), index, top
        )

    def _continuation(self, place: int, index: int) -> Iterable[Piece]:
        if self._script.says == "echo":
            return copy(self._echoes[place])
        if self._script.says == "refusal":
            return tokens.split(REFUSAL)
        return at_most(self._script.tokens, prose(self._seed + index))


def _shared(text: str) -> Iterator[Piece]:
    """The text's tokens, encoded once for all choices that read a copy of this, as they come to them."""
    (pieces,) = tee(tokens.split(text), 1)
    return pieces


def scripting_text(request: GenerationRequest) -> str:
    """Where markers are looked for: the last user message, or a text request's first prompt."""
    prompt = request.prompt
    if isinstance(prompt, Texts):
        return _prompt_text(prompt.prompts[0])
    said = next((message for message in reversed(prompt.messages) if isinstance(message, UserMessage)), None)
    if said is None or isinstance(said.content, str):
        return said.content if said is not None and isinstance(said.content, str) else ""
    return "".join(part.text for part in said.content if isinstance(part, TextPart))


def _capped(
    steps: Iterator[Step], max_output_tokens: int, finish_reason: FinishReason
) -> Generator[Step, None, FinishReason]:
    left = max_output_tokens
    for step in steps:
        left -= step[1]
        if left < 0:
            return "length"
        yield step
    return finish_reason


def _said(
    kind: type[Text] | type[Refusal], pieces: Iterable[Piece], index: int, top: int | None
) -> Iterator[Step]:
    for text, cost in pieces:
        yield kind(text, index, None if top is None else [logprob(text, top)]), cost


def _without_first_logprob(step: Step, is_first: bool) -> Step:
    """Nothing precedes a prompt's first token, so nobody knows how likely it was."""
    delta, cost = step
    if not is_first or not isinstance(delta, Text) or not delta.logprobs:
        return step
    unknown = msgspec.structs.replace(delta.logprobs[0], logprob=UNKNOWN_LOGPROB, top_logprobs=[])
    return msgspec.structs.replace(delta, logprobs=[unknown]), cost


def _tools_to_call(request: GenerationRequest, script: Script) -> list[Tool]:
    """As many of the offered tools in turn as the script wants, within what `tool_choice` and
    `parallel_tool_calls` allow.

    Once a tool has answered, the sandbox speaks, so that an agent's loop ends; unless the request insists on
    a call.
    """
    offered, is_required = _offered_tools(request)
    last = request.prompt.messages[-1] if isinstance(request.prompt, Messages) else None
    wanted = 0 if isinstance(last, ToolMessage | FunctionMessage) else script.tool_calls
    if is_required:
        wanted = max(wanted, 1)
    if request.tool_choice == "none" or request.function_call == "none":
        return []
    return list(islice(cycle(offered), min(wanted, 1) if request.parallel_tool_calls is False else wanted))


def _offered_tools(request: GenerationRequest) -> tuple[list[Tool], bool]:
    """The tools that may be called, and whether one of them must be."""
    offered: list[Tool] = [
        *(request.tools or ()),
        *(FunctionTool(function) for function in request.functions or ()),
    ] or [EXAMPLE_TOOL]
    choice = request.tool_choice or request.function_call
    if isinstance(choice, AllowedToolsChoice):
        names = [name for tool in choice.allowed_tools.tools for name in _names_in(tool)]
        return [
            tool for tool in offered if _name(tool) in names
        ] or offered, choice.allowed_tools.mode == "required"
    if isinstance(choice, FunctionChoice | CustomChoice):
        named = choice.function.name if isinstance(choice, FunctionChoice) else choice.custom.name
        return [tool for tool in offered if _name(tool) == named], True
    if choice is None or isinstance(choice, str):
        return offered, choice == "required"
    return [tool for tool in offered if _name(tool) == choice.name], True


def _name(tool: Tool) -> str:
    return tool.custom.name if isinstance(tool, CustomTool) else tool.function.name


def _names_in(tool: dict[str, object]) -> Iterator[object]:
    """The name in an entry of `allowed_tools`, which is only known to be an object."""
    for inner in tool.values():
        if isinstance(inner, dict):
            yield inner.get("name")


def _json_text(schema: object, seed: int, param: str) -> str:
    try:
        return msgspec.json.encode(instance(schema, words(seed))).decode()
    except SchemaError as error:
        raise UnusableSchemaError(f"The sandbox can't answer: {error}.", param) from error


def _prompt_text(prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else tokens.decode(prompt)


def _seed(request: GenerationRequest) -> int:
    return crc32(b"%d:%s" % (request.seed or 0, request.prompt_text.encode("utf-8", "replace")))
