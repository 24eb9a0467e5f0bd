"""Reads the parameters of a request that shape the sandbox's answer. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, takewhile
from typing import Any, Final, assert_never
from zlib import crc32

import msgspec

from chatapi.wire import tokens
from chatapi.wire.deltas import ToolKind
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.messages import AssistantMessage, FunctionMessage, TextPart, ToolMessage, UserMessage
from chatapi.wire.parameters import (
    AllowedToolsChoice,
    CustomChoice,
    CustomTool,
    FunctionCallChoice,
    FunctionChoice,
    FunctionDefinition,
    Functions,
    JsonObjectFormat,
    JsonSchemaFormat,
    Named,
    Tool,
    ToolChoice,
)
from chatapi.wire.prompts import Messages, Texts
from chatapi.worker.engines.sandbox.script import Script

_PIECE_CHARS: Final = 64 << 10
_tools_decoder = msgspec.json.Decoder(list[Tool])
_functions_decoder = msgspec.json.Decoder(Functions)
_ANY_OBJECT: Final = {"type": "object", "properties": {"sandbox": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class SchemaToFill:
    """A JSON schema, and the parameter that has it."""

    schema: dict[str, Any]
    param: str


@dataclass(frozen=True, slots=True)
class ToolToCall:
    """A tool; without `arguments` it takes text."""

    name: str
    kind: ToolKind
    arguments: SchemaToFill | None


# Called if a script wants a tool call and the request has no tool.
EXAMPLE_TOOL: Final = ToolToCall(
    "get_weather",
    "function",
    SchemaToFill({"properties": {"location": {"type": "string"}}, "required": ["location"]}, "tools"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSpec:
    """The properties of an answer that come from the request, and not from the script."""

    is_chat: bool
    seed: int
    texts: list[str]
    """What is echoed and continued: a chat's last user message, or each prompt of a text request."""
    choices_per_text: int
    stop_sequences: Sequence[str]
    top_logprobs: int | None
    """None: no log probabilities."""
    begins_with_prompt: bool = False
    tools_to_call: Sequence[ToolToCall] = ()
    structure: SchemaToFill | None = None


def answer_spec(request: GenerationRequest, script: Script) -> AnswerSpec:
    """Return the properties of the answer to this request under this script."""
    prompt = request.prompt
    structure = None
    match request.response_format:
        case JsonSchemaFormat(json_schema=named):
            structure = SchemaToFill(named.schema or _ANY_OBJECT, "response_format.json_schema.schema")
        case JsonObjectFormat():
            structure = SchemaToFill(_ANY_OBJECT, "response_format")
    texts = [scripting_text(request)]
    if isinstance(prompt, Texts):
        texts = [prompt_text(each) for each in prompt.prompts]
    return AnswerSpec(
        is_chat=isinstance(prompt, Messages),
        seed=_seed(request),
        texts=texts,
        choices_per_text=request.n or 1,
        stop_sequences=request.stop_sequences,
        top_logprobs=request.logprobs_count,
        begins_with_prompt=isinstance(prompt, Texts) and bool(prompt.echo),
        tools_to_call=_tools_to_call(request, prompt, script) if isinstance(prompt, Messages) else (),
        structure=structure,
    )


def _seed(request: GenerationRequest) -> int:
    """Return a checksum of the request, the only source of randomness: equal requests get equal answers."""
    seed, text = crc32(b"%d:" % (request.seed or 0)), request.prompt_text
    for start in range(0, len(text), _PIECE_CHARS):
        seed = crc32(text[start : start + _PIECE_CHARS].encode("utf-8", "replace"), seed)
    return seed


def scripting_text(request: GenerationRequest) -> str:
    """Return the text that may have markers: the last user message, or the first of other prompts.

    A user message without text does not count: it has the pictures that a tool has returned.
    """
    prompt = request.prompt
    if not isinstance(prompt, Messages):
        return prompt_text(prompt.prompts[0])
    users = (message.content for message in reversed(prompt.messages) if isinstance(message, UserMessage))
    texts = (
        said if isinstance(said, str) else "".join(part.text for part in said if isinstance(part, TextPart))
        for said in users
    )
    return next(filter(None, texts), "")


def may_have_schema(request: GenerationRequest) -> bool:
    """Return whether the answer may need an instance of a JSON schema."""
    return bool(request.response_format or request.tools or request.functions)


def prompt_text(prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else tokens.decode(prompt)


def _tools_to_call(request: GenerationRequest, prompt: Messages, script: Script) -> list[ToolToCall]:
    """Return the offered tools in turn, as many as the script wants and the request allows.

    Once a tool has answered, the sandbox says text, so that an agent's loop ends, unless a call is required.
    """
    if "none" in (request.tool_choice, request.function_call):
        return []
    tools = _tools_decoder.decode(request.tools) if request.tools else []
    functions = _functions_decoder.decode(request.functions) if request.functions else []
    # The deprecated functions alone get the deprecated call, of which an answer has one.
    kind: ToolKind = "function" if tools or not functions else "function_call"
    offered = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    offered += [_function(function, f"functions[{index}]", kind) for index, function in enumerate(functions)]
    offered, is_required = _chosen(offered or [EXAMPLE_TOOL], request.tool_choice or request.function_call)
    # Pictures and reminders may stand behind a tool's answer, as a user's message.
    turn = takewhile(lambda message: not isinstance(message, AssistantMessage), reversed(prompt.messages))
    has_answer = any(isinstance(message, ToolMessage | FunctionMessage) for message in turn)
    count = 0 if has_answer else script.tool_calls
    if is_required:
        count = max(count, 1)
    if request.parallel_tool_calls is False or kind == "function_call":
        count = min(count, 1)
    return list(islice(cycle(offered), count))


def _tool(tool: Tool, param: str) -> ToolToCall:
    if isinstance(tool, CustomTool):
        return ToolToCall(tool.custom.name, "custom", None)
    return _function(tool.function, f"{param}.function", "function")


def _function(function: FunctionDefinition, param: str, kind: ToolKind) -> ToolToCall:
    arguments = SchemaToFill(function.parameters or _ANY_OBJECT, f"{param}.parameters")
    return ToolToCall(function.name, kind, arguments)


def _chosen(
    offered: list[ToolToCall], choice: ToolChoice | FunctionCallChoice | None
) -> tuple[list[ToolToCall], bool]:
    """Return the tools that `tool_choice` or `function_call` allows, and whether one of them is required."""
    match choice:
        case AllowedToolsChoice(allowed_tools=allowed):
            # The reference says of an entry only that it is an object.
            members = [member for entry in allowed.tools for member in entry.values()]
            names = [member.get("name") for member in members if isinstance(member, dict)]
            chosen = [tool for tool in offered if tool.name in names]
            return chosen or offered, allowed.mode == "required"
        case FunctionChoice() | CustomChoice() | Named():
            return [tool for tool in offered if tool.name == choice.name], True
        case "none" | "auto" | "required" | None:
            return offered, choice == "required"
        case _:
            assert_never(choice)
