"""Translates the turns of a Messages request into the messages of a chat.

1. Consecutive turns of one role are one turn, also around a change of the tools.
2. A user's turn becomes a message for each tool result, then one message with the rest.
3. Each `tool_use` needs its result in the next turn, except for those of the last turn.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from chatapi.wire.caps import MAX_CONTENT_PARTS, MAX_TOOL_CALLS
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.messages import (
    OUTPUT_BEHIND,
    AssistantMessage,
    CacheControl,
    CalledFunction,
    CustomCall,
    FunctionCall,
    Message,
    SystemMessage,
    TextPart,
    Thought,
    ToolMessage,
    UserMessage,
    UserPart,
)
from chatapi.wire.protocols.messages.blocks import (
    AssistantTurn,
    Base64Document,
    Block,
    CompactionBlock,
    ContentDocument,
    DocumentBlock,
    Dropped,
    ImageBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    SystemTurn,
    TextBlock,
    TextDocument,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    URLImage,
    UserTurn,
    said,
)

# Claude Code's line about its release, for Anthropic's servers. It differs in each request, so no upstream
# would find the rest of the prompt in its cache.
_BILLING_LINE: Final = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")
_UserPart = TypeVar("_UserPart", bound=UserPart)
# A block, and the number of its turn.
Numbered = tuple[int, Block]


def to_messages(
    system: str | Sequence[TextBlock], turns: Sequence[Turn], to_name: Callable[[str], str]
) -> list[Message]:
    """Return the chat's messages; `to_name` turns a tool's name into one that upstreams take.

    Raises `InvalidRequest`.
    """
    messages: list[Message] = []
    instructions = [TextBlock(system)] if isinstance(system, str) else system
    if parts := _text_parts([block for block in instructions if not _BILLING_LINE.fullmatch(block.text)]):
        messages.append(SystemMessage(_message_content(parts, "system")))
    open_calls: dict[str, int] = {}
    # Anthropic joins turns of one role that follow each other ("Messages").
    for _, group in groupby(said(turns), key=lambda numbered: type(numbered[1])):
        numbered_turns = [*group]
        blocks = [(number, block) for number, turn in numbered_turns for block in _blocks_of(turn)]
        # Anthropic's rule: the results are in the turn right after the calls.
        _close_calls(open_calls, blocks)
        match numbered_turns[0][1]:
            case UserTurn():
                messages += _user_messages(blocks)
            case SystemTurn():
                parts = _text_parts([block for _, block in blocks if isinstance(block, TextBlock)])
                messages.append(SystemMessage(_message_content(parts, _content_param(blocks))))
            case AssistantTurn():
                messages += _assistant_messages(blocks, to_name)
                open_calls = {block.id: number for number, block in blocks if isinstance(block, ToolUseBlock)}
            case other:
                assert_never(other)
    return messages


def remote_pictures(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield the path of the URL of each picture that an upstream would have to fetch."""
    for number, turn in enumerate(turns):
        yield from _remote_pictures(f"messages[{number}].content", turn.content)


def _remote_pictures(path: str, content: str | Sequence[Block]) -> Iterator[str]:
    for number, block in enumerate([] if isinstance(content, str) else content):
        here = f"{path}[{number}]"
        match block:
            case ImageBlock(source=URLImage() as source) if source.part().image_url.is_remote:
                yield f"{here}.source.url"
            case ToolResultBlock():
                yield from _remote_pictures(f"{here}.content", block.content)
            case DocumentBlock(source=ContentDocument(content=inner)):
                yield from _remote_pictures(f"{here}.source.content", inner)
            case ImageBlock() | DocumentBlock() | TextBlock() | SearchResultBlock() | Dropped():
                pass
            case ToolUseBlock() | ThinkingBlock() | RedactedThinkingBlock() | CompactionBlock():
                pass
            case _:
                assert_never(block)


def _close_calls(open_calls: dict[str, int], blocks: Iterable[Numbered]) -> None:
    """Check that these blocks have exactly one result for each open call, and close the calls. Raises
    `InvalidRequest`.
    """
    for number, block in blocks:
        if isinstance(block, ToolResultBlock) and open_calls.pop(block.tool_use_id, None) is None:
            param = f"messages[{number}].content"
            allowed = f"the tool_result for '{block.tool_use_id}' answers no tool_use of the message before"
            raise InvalidRequest(f"Invalid value for '{param}': {allowed}.", param)
    for call_id, number in open_calls.items():
        param = f"messages[{number}].content"
        allowed = f"the tool_use '{call_id}' needs a tool_result in the next message"
        raise InvalidRequest(f"Invalid value for '{param}': {allowed}.", param)


def _user_messages(blocks: Sequence[Numbered]) -> Iterator[Message]:
    rest: list[UserPart] = []
    has_results = False
    for _, block in blocks:
        if isinstance(block, ToolResultBlock):
            parts = _marked_parts(_blocks_of(block))
            # OpenAI's tool messages have only text; a result's pictures go into the user message after it.
            texts = [part for part in parts if isinstance(part, TextPart)]
            text = "\n".join(part.text for part in texts)
            yield ToolMessage(
                text or (OUTPUT_BEHIND if parts else ""),
                block.tool_use_id,
                is_error=block.is_error,
                cache_control=_last_mark([*texts, block]),
            )
            rest += [part for part in parts if not isinstance(part, TextPart)]
            has_results = True
    # Results come first: OpenAI requires them right after the calls.
    rest += _marked_parts(block for _, block in blocks)
    # A user's turn without content becomes an empty message: otherwise two assistant messages would be
    # adjacent.
    if rest or not has_results:
        yield UserMessage(_message_content(rest, _content_param(blocks)))


def _assistant_messages(blocks: Sequence[Numbered], to_name: Callable[[str], str]) -> Iterator[Message]:
    texts: list[str] = []
    calls: list[FunctionCall | CustomCall] = []
    thoughts: list[Thought] = []
    for _, block in blocks:
        match block:
            case TextBlock():
                texts.append(block.text)
            case CompactionBlock():
                texts += [block.content, "\n\n"] if block.content else []
            case ToolUseBlock():
                calls.append(_call(block, to_name))
            case ThinkingBlock() | RedactedThinkingBlock():
                thoughts.append(block.thought())
            case Dropped() | ImageBlock() | DocumentBlock() | SearchResultBlock() | ToolResultBlock():
                pass  # all but the first are in users' turns only
            case _:
                assert_never(block)
    _refuse_more(blocks, len(calls), MAX_TOOL_CALLS, "calls")
    _refuse_more(blocks, len(thoughts), MAX_CONTENT_PARTS, "blocks of thinking")
    text = "".join(texts)
    # A turn with only thoughts is left out: a chat template would have nothing to write.
    if text or calls:
        yield AssistantMessage(
            content=text or None,
            tool_calls=calls or None,
            # For Anthropic upstreams, which require them; others that ask for them get the text.
            thoughts=thoughts or None,
            cache_control=_last_mark([block for _, block in blocks]),
        )


def _refuse_more(blocks: Sequence[Numbered], count: int, most: int, what: str) -> None:
    if count > most:
        param = _content_param(blocks)
        raise InvalidRequest(f"Invalid value for '{param}': expected at most {most} {what}.", param)


def _call(block: ToolUseBlock, to_name: Callable[[str], str]) -> FunctionCall:
    arguments = msgspec.json.encode(block.input).decode()
    return FunctionCall(block.id, CalledFunction(to_name(block.name), arguments))


def _last_mark(marked: Sequence[Block | UserPart]) -> CacheControl | None:
    marks = (getattr(each, "cache_control", None) for each in reversed(marked))
    return next(filter(None, marks), None)


def _marked_parts(blocks: Iterable[Block]) -> list[UserPart]:
    """Return the content parts of the blocks; a block's mark becomes that of its last part."""
    found: list[UserPart] = []
    for block in blocks:
        if parts := [*_parts_of(block)]:
            # A mark caches all content before it, so a block's mark belongs to its last part.
            mark = _last_mark([parts[-1], block])
            found += [*parts[:-1], replace(parts[-1], cache_control=mark)]
    return found


def _parts_of(block: Block) -> Iterator[UserPart]:
    """Yield the content parts of a block; none if it is empty, dropped, or becomes its own message."""
    match block:
        case TextBlock():
            yield from _text_parts([block])
        case ImageBlock():
            yield block.source.part()
        case SearchResultBlock():
            yield from _search_result_parts(block)
        case DocumentBlock():
            yield from _document_parts(block)
        case ToolResultBlock() | ToolUseBlock() | ThinkingBlock() | RedactedThinkingBlock():
            pass
        case CompactionBlock() | Dropped():
            pass
        case _:
            assert_never(block)


def _document_parts(block: DocumentBlock) -> Iterator[UserPart]:
    source = block.source
    if isinstance(source, Base64Document):
        # The document's `context` becomes text before it: a file part has no place for it.
        yield from _text_parts(block.context or "")
        yield source.part(block.title or "")
        return
    yield from _text_parts("\n".join(filter(None, (block.title, block.context))))
    content = source.data if isinstance(source, TextDocument) else source.content
    yield from _marked_parts([TextBlock(content)] if isinstance(content, str) else content)


def _search_result_parts(block: SearchResultBlock) -> Iterator[TextPart]:
    """Yield a search result as one text, or as several if it has marks inside."""
    lines = [block.title, block.source]
    for text in block.content:
        lines.append(text.text)
        if text.cache_control is not None:
            yield from _text_parts([TextBlock("\n".join(lines), text.cache_control)])
            lines = []
    yield from _text_parts("\n".join(lines))


def _blocks_of(holder: Turn | ToolResultBlock) -> Sequence[Block]:
    """Return the blocks of a turn or of a tool's result."""
    return [TextBlock(holder.content)] if isinstance(holder.content, str) else holder.content


def _text_parts(text: str | Sequence[TextBlock]) -> list[TextPart]:
    blocks = [TextBlock(text)] if isinstance(text, str) else text
    # Without empty texts: many chat templates fail on them.
    return [TextPart(block.text, cache_control=block.cache_control) for block in blocks if block.text]


def _message_content(parts: list[_UserPart], param: str) -> str | list[_UserPart]:
    """Return the parts as a message's content: a string if it is one text without a mark."""
    if len(parts) > MAX_CONTENT_PARTS:
        raise InvalidRequest(
            f"Invalid value for '{param}': expected at most {MAX_CONTENT_PARTS} blocks.", param
        )
    # Every upstream reads a plain string; some small servers know no parts.
    if len(parts) == 1 and isinstance(parts[0], TextPart) and parts[0].cache_control is None:
        return parts[0].text
    return parts or ""


def _content_param(blocks: Sequence[Numbered]) -> str:
    return f"messages[{blocks[0][0]}].content" if blocks else "messages"
