"""Stored responses: their state for later requests, and the objects and queries of their routes.

Code outside this folder reads, continues and deletes responses only with these functions.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, get_args
from uuid import UUID

import msgspec

from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.responses.encoder import Encoder, Folder
from chatapi.wire.protocols.responses.items import ID_PREFIXES, WholeItem
from chatapi.wire.protocols.responses.parts import MessagePart
from chatapi.wire.protocols.responses.request import NAME
from chatapi.wire.protocols.responses.response import ID_PREFIX

__all__ = ["CONTINUED_PARAM", "ENDPOINT", "ITEMS_PARAM", "Folder", "PageQuery", "State", "accepted"]
__all__ += ["conversation", "deleted", "events", "input_page", "output_items", "page_query", "queued"]
__all__ += ["read_state", "resolved_body", "response_of", "starting_after", "wants_stream"]

# The name of the protocol in a generation's row.
ENDPOINT: Final = NAME
# The parameter that names the response that a request continues.
CONTINUED_PARAM: Final = "previous_response_id"
# The parameter whose items may be references.
ITEMS_PARAM: Final = "input"
# As `Response._item_id` makes them: prefix, generation, number.
_OUTPUT_ID = re.compile(r"[a-z]{2,5}_([0-9a-f]{32})[0-9a-f]{2,4}", re.ASCII)

_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
# The largest number of an event, as of an entry in a log.
_MAX_EVENT: Final = 999_999_999
_MAX_PAGE_ITEMS: Final = 100

# Returns the value of a parameter of the URL's query, or None without it.
Query = Callable[[str], str | None]

_to_json = msgspec.json.Encoder().encode
# By the type of an item or a part.
_REQUIRED: Final[dict[str, dict[str, Any]]] = {
    each.__struct_config__.tag: each.sdk_members for each in (*get_args(WholeItem), *get_args(MessagePart))
}


class State(msgspec.Struct, frozen=True):
    """A stored response's request."""

    items: msgspec.Raw
    """The whole conversation, a JSON array."""
    context: dict[str, Any]
    """The parts of the request that the response repeats (`GenerationRequest.context`)."""

    @property
    def is_background(self) -> bool:
        """Whether the response was created in the background."""
        return "is_background" in self.context


class PageQuery(NamedTuple):
    """The page of the conversation's items that a client asks for."""

    limit: int
    is_descending: bool
    after: str | None
    """The id of the item before the page."""


def page_query(query: Query) -> PageQuery:
    """Return the query of a page of items. Raises `InvalidRequest`."""
    limit = _number(query, "limit", 20, 1, _MAX_PAGE_ITEMS)
    order = query("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid value for 'order': supported values are: 'asc', 'desc'.", "order")
    return PageQuery(limit, order == "desc", query("after"))


def wants_stream(query: Query) -> bool:
    """Return whether a client that reads a response asks for its events. Raises `InvalidRequest`."""
    value = query("stream")
    if value not in (None, "true", "false"):
        raise InvalidRequest("Invalid value for 'stream': expected 'true' or 'false'.", "stream")
    return value == "true"


def starting_after(query: Query) -> int:
    """Return the number of the event after which a stream begins; -1: it has all events.

    Raises `InvalidRequest`.
    """
    return _number(query, "starting_after", -1, 0, _MAX_EVENT)


def _number(query: Query, name: str, default: int, least: int, most: int) -> int:
    text = query(name)
    if text is None:
        return default
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
        message = f"Invalid value for '{name}': expected an integer from {least} to {most}."
        raise InvalidRequest(message, name)
    return int(text)


def read_state(data: bytes) -> State:
    """Return the state that the parser wrote (`GenerationRequest.state`). Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(data, type=State)


def accepted(answer: Answer, state: bytes) -> bytes:
    """Return the object of a response in the background that is queued; see `Dialect.accepted`."""
    return queued(answer, read_state(state)).body()


def queued(answer: Answer, state: State) -> Folder:
    """Return a queued response, which has no deltas yet."""
    folder = Folder(answer)
    folder.response.expect(state.context)
    return folder


def events(answer: Answer, state: State, after: int) -> Encoder:
    """Return the encoder of the events after number `after`; -1: of all events."""
    encoder = Encoder(answer, after)
    # If the response failed before it began, only the state has the context that its last event repeats.
    encoder.response.expect(state.context)
    return encoder


def response_of(item_id: str) -> UUID | None:
    """Return the generation whose output has the item with this id, or None if the id does not have the form
    of an output item's id.
    """
    match = _OUTPUT_ID.fullmatch(item_id)
    return None if match is None else UUID(match[1])


def conversation(state: State, folder: Folder) -> bytes:
    """Return all items up to the end of that response, as JSON."""
    items, output = bytes(state.items), _to_json(_sent_back(folder))
    # Either may be empty: a request may have only instructions, and an answer no item that has ended.
    if b"[]" in (items, output):
        return items if output == b"[]" else output
    return items[:-1] + b"," + output[1:]


def output_items(folder: Folder) -> dict[str, bytes]:
    """Return the output's items as JSON, by id."""
    return {item["id"]: _to_json(item) for item in _sent_back(folder)}


def _sent_back(folder: Folder) -> list[dict[str, Any]]:
    """Return the output without log probabilities and annotations: no request reads them, and they would
    count as values of the next body (`MAX_VALUES`).
    """
    items = folder.response.output
    for item in items:
        for part in item.get("content", ()):
            part.pop("logprobs", None)
            part.pop("annotations", None)
    return items


def resolved_body(
    pieces: Sequence[bytes], previous: bytes, items: Iterable[tuple[str, bytes]]
) -> list[bytes]:
    """Return a request's body with the items that it refers to (`request.Resolved`).

    The parser has already checked that the body is a JSON object that is not empty.
    """
    members = b",".join(_to_json(id_) + b":" + item for id_, item in items)
    resolved = b'{"resolved":{"previous":' + (previous or b"[]") + b',"items":{' + members + b"}},"
    for index, piece in enumerate(pieces):
        before, bracket, rest = piece.partition(b"{")
        if bracket:
            return [before + resolved, rest, *pieces[index + 1 :]]
    raise ValueError("the body is no object")


def input_page(answer_id: str, state: State, query: PageQuery) -> bytes:
    """Return a page of the conversation's items. Raises `InvalidRequest` if there is no item `after`."""
    items = msgspec.json.decode(state.items, type=list[msgspec.Raw])  # only those of the page are decoded
    numbers = range(len(items))[:: -1 if query.is_descending else 1]
    places: dict[str, int] = {}
    for number, head in enumerate(msgspec.json.decode(state.items, type=list[_Head])):
        # A repeated id, as of an item that is referred to, would lead to the same page again and again.
        own_id = None if head.id in places else head.id
        places[own_id or _item_id(answer_id, number, head.type)] = number
    if query.after:
        if query.after not in places:
            raise InvalidRequest("Invalid value for 'after': there is no input item with this id.", "after")
        numbers = numbers[numbers.index(places[query.after]) + 1 :]
    ids = [*places]
    found = [_input_item(ids[number], items[number]) for number in numbers[: query.limit]]
    page = {"object": "list", "data": found, "has_more": len(numbers) > query.limit}
    first, last = (found[0], found[-1]) if found else ({}, {})
    return _to_json(page | {"first_id": first.get("id"), "last_id": last.get("id")})


class _Head(msgspec.Struct):
    type: str
    id: str | None = None


def _item_id(answer_id: str, number: int, kind: str) -> str:
    """Return the id for an item that came without one, or with the id of another item."""
    return f"{ID_PREFIXES[kind]}_{answer_id}i{number:x}"


def _input_item(item_id: str, raw: msgspec.Raw) -> dict[str, Any]:
    """Return an item with this id and the members that clients expect."""
    item: dict[str, Any] = msgspec.json.decode(raw)
    item.pop("id", None)
    whole = {"id": item_id, "status": "completed"} | item
    if item["type"] == "message":
        whole["content"] = _said(item["role"], item["content"])
    elif isinstance(item.get("output"), list):
        whole["output"] = [_complete(part) for part in item["output"]]
    return _complete(whole)


def _said(role: str, content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a message's parts."""
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    if role == "assistant":
        # Some clients send back the model's text as input text.
        parts = [part | {"type": part["type"].replace("input_text", "output_text")} for part in parts]
    return [_complete(part) for part in parts]


def _complete(value: dict[str, Any]) -> dict[str, Any]:
    """Return an item or a part with the members that the published types require."""
    return value | {
        name: default for name, default in _REQUIRED.get(value["type"], {}).items() if name not in value
    }


def deleted(answer: Answer) -> bytes:
    """Return the object that confirms a deletion."""
    return _to_json({"id": ID_PREFIX + answer.id, "object": "response", "deleted": True})
