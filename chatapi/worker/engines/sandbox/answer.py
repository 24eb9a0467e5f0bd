"""What the sandbox answers under a script: the choices, token by token, without a clock. Pure."""

import hashlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import chain, cycle, tee

import msgspec

from chatapi.wire import tokens
from chatapi.wire.deltas import AnyDelta, Finished, FinishReason, Reasoning, Refusal, Text, ToolCall
from chatapi.wire.upstream.logprobs import UNKNOWN_LOGPROB
from chatapi.worker.engines.sandbox.request import AnswerSpec, SchemaToFill, ToolToCall
from chatapi.worker.engines.sandbox.schema import instance
from chatapi.worker.engines.sandbox.script import Script, without_markers
from chatapi.worker.engines.sandbox.text import REFUSAL, Piece, at_most, logprob, prose, until_stop, words

CUSTOM_INPUT_TOKENS = 8
# The most tokens of all choices, with echoed ones and `top_logprobs`: they cost nothing, so they are bounded.
MAX_ANSWER_UNITS = 100_000
# A log probability, of a token or of an alternative, takes as much memory as this number of tokens.
LOGPROB_UNITS = 5

# A delta, and how many completion tokens it costs.
Step = tuple[AnyDelta, int]


class Answer:
    """One request's answer. Read `rounds` once; after that, the finishes and the tokens are complete."""

    def __init__(self, spec: AnswerSpec, script: Script, max_output_tokens: int) -> None:
        """Raises `SchemaError`."""
        self.choices_count = len(spec.texts) * spec.choices_per_text
        self.finished: list[Finished] = []
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        logprobs = 0 if spec.top_logprobs is None else 1 + spec.top_logprobs
        self._units_each = 1 + LOGPROB_UNITS * logprobs
        content = self._content = _Content(spec, script)
        finish_reason: FinishReason = script.finish or _reason(spec.tools_to_call)
        self._choices = [
            _capped(content.steps(index), max_output_tokens, finish_reason)
            for index in range(self.choices_count)
        ]

    def rounds(self) -> Iterator[list[AnyDelta]]:
        """Yield one delta of each choice that still goes on, in the order of their indices."""
        ended: dict[int, FinishReason] = {}
        units_left = MAX_ANSWER_UNITS
        while len(ended) < len(self._choices):
            deltas = []
            for index, choice in enumerate(self._choices):
                if index in ended:
                    continue
                if units_left <= 0:
                    ended[index] = "length"
                    continue
                units_left -= self._units_each
                try:
                    delta, cost = next(choice)
                except StopIteration as end:
                    ended[index] = end.value
                    continue
                self.completion_tokens += cost
                if isinstance(delta, Reasoning):
                    self.reasoning_tokens += cost
                deltas.append(delta)
            if deltas:
                yield deltas
        self.finished = [self._finished(ended[index], index) for index in sorted(ended)]

    def _finished(self, reason: FinishReason, index: int) -> Finished:
        stop_sequence = self._content.stopped_by.get(index) if reason == "stop" else None
        return Finished(reason, index, stop_sequence=stop_sequence)


class _Content:
    """The content of all choices."""

    def __init__(self, spec: AnswerSpec, script: Script) -> None:
        """Raises `SchemaError`."""
        self._spec = spec
        self._script = script
        # A tool has the same arguments in every call and choice, made once.
        tools = {id(tool): tool for tool in spec.tools_to_call}
        arguments = {tool_id: self._arguments(tool) for tool_id, tool in tools.items()}
        self._calls = [(tool, arguments[id(tool)]) for tool in spec.tools_to_call]
        self._prompts = [_shared(text) for text in spec.texts] if spec.begins_with_prompt else []
        self.stopped_by: dict[int, str] = {}
        """The stop string that ended a choice's text."""
        # The content for each text, if all of its choices have the same one.
        self._alike: list[Iterator[Piece]] = []
        if spec.structure is not None and not self._calls:
            self._alike = [_shared(self._json(spec.structure))]
        elif script.says == "echo":
            self._alike = [_shared(without_markers(text)) for text in spec.texts]

    def steps(self, index: int) -> Iterator[Step]:
        """Yield choice `index`: the prompt and reasoning if wanted, then tool calls, a refusal or text."""
        spec, script = self._spec, self._script
        at = index // spec.choices_per_text
        if spec.begins_with_prompt:
            prompt = ((text, 0) for text, _ in copy(self._prompts[at]))
            echoed = _said(Text, prompt, index, spec.top_logprobs)
            yield from map(_without_first_logprob, echoed, chain([True], cycle([False])))
        if spec.is_chat:
            for text, cost in at_most(script.reasoning_tokens, prose(~(spec.seed + index))):
                yield Reasoning(text, index), cost
        if self._calls:
            for call_index, (tool, arguments) in enumerate(self._calls):
                digest = hashlib.sha256(b"%d:%d:%d" % (spec.seed, index, call_index)).hexdigest()
                call_id = None if tool.kind == "function_call" else f"call_{digest[:24]}"
                cost = tokens.count(tool.name)
                yield ToolCall(call_index, "", call_id, tool.name, index, tool.kind), cost
                for text, cost in copy(arguments):
                    yield ToolCall(call_index, text, index=index, kind=tool.kind), cost
        elif spec.is_chat and script.says == "refusal":
            yield from _said(Refusal, tokens.split(REFUSAL), index, spec.top_logprobs)
        else:
            on_stop = partial(self.stopped_by.__setitem__, index)
            pieces = until_stop(spec.stop_sequences, self._text(at, index), on_stop)
            yield from _said(Text, pieces, index, spec.top_logprobs)

    def _text(self, at: int, index: int) -> Iterable[Piece]:
        if self._alike:
            return copy(self._alike[at])
        if self._script.says == "refusal":
            return tokens.split(REFUSAL)
        return at_most(self._script.tokens, prose(self._spec.seed + index))

    def _arguments(self, tool: ToolToCall) -> Iterator[Piece]:
        if tool.arguments is not None:
            return _shared(self._json(tool.arguments))
        return _shared("".join(text for text, _ in at_most(CUSTOM_INPUT_TOKENS, prose(self._spec.seed))))

    def _json(self, wanted: SchemaToFill) -> str:
        return msgspec.json.encode(instance(wanted.schema, words(self._spec.seed), wanted.param)).decode()


def _shared(text: str) -> Iterator[Piece]:
    """Return the text's tokens for all choices, which read copies: each token is made when it is needed."""
    (pieces,) = tee(tokens.split(text), 1)
    return pieces


def _reason(called: Sequence[ToolToCall]) -> FinishReason:
    if not called:
        return "stop"
    return "function_call" if called[0].kind == "function_call" else "tool_calls"


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
    kind: type[Text] | type[Refusal], pieces: Iterable[Piece], index: int, top_logprobs: int | None
) -> Iterator[Step]:
    for text, cost in pieces:
        yield kind(text, index, None if top_logprobs is None else [logprob(text, top_logprobs)]), cost


def _without_first_logprob(step: Step, is_first: bool) -> Step:
    """Take the log probability from a prompt's first token: nothing precedes it."""
    delta, cost = step
    if not is_first or not isinstance(delta, Text) or not delta.logprobs:
        return step
    unknown = msgspec.structs.replace(delta.logprobs[0], logprob=UNKNOWN_LOGPROB, top_logprobs=[])
    return msgspec.structs.replace(delta, logprobs=[unknown]), cost
