"""What is kept of a response for later requests, and the objects that tell of it."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.responses.response import Folder

_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_to_json = msgspec.json.Encoder().encode


class State(msgspec.Struct, frozen=True):
    """A stored response's request."""

    items: msgspec.Raw
    """The whole conversation, a JSON array."""
    context: dict[str, Any]
    """What the response repeats (`GenerationRequest.context`)."""

    @property
    def is_background(self) -> bool:
        """Whether nobody waited for the response."""
        return "is_background" in self.context


def read_state(data: bytes) -> State:
    """Return the state that the parser wrote (`GenerationRequest.state`). Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(data, type=State)


def accepted(answer: Answer, state: bytes) -> bytes:
    """Return the object of a response in the background that is queued; see `Dialect.accepted`."""
    return queued(answer, read_state(state)).body()


def queued(answer: Answer, state: State) -> Folder:
    """Return the response before its first delta."""
    folder = Folder(answer)
    folder.response.expect(state.context)
    return folder


def conversation(state: State, folder: Folder) -> bytes:
    """Return all items up to the end of that response, as JSON."""
    output = _to_json(folder.response.output)
    if output == b"[]":
        return bytes(state.items)
    return bytes(state.items)[:-1] + b"," + output[1:]


def output_items(folder: Folder) -> dict[str, bytes]:
    """Return the output's items as JSON, by id."""
    return {item["id"]: _to_json(item) for item in folder.response.output}


def resolved_body(
    pieces: Sequence[bytes], previous: bytes, items: Iterable[tuple[str, bytes]]
) -> list[bytes]:
    """Return a request's body with the items that it refers to (`request.Resolved`).

    The body is a JSON object that is not empty, which the parser has seen.
    """
    members = b",".join(_to_json(id_) + b":" + item for id_, item in items)
    resolved = b'{"resolved":{"previous":' + (previous or b"[]") + b',"items":{' + members + b"}},"
    for index, piece in enumerate(pieces):
        before, bracket, rest = piece.partition(b"{")
        if bracket:
            return [before + resolved, rest, *pieces[index + 1 :]]
    raise ValueError("the body is no object")


def item_list(items: Sequence[dict[str, Any]], *, has_more: bool) -> bytes:
    """Return a page of items."""
    ids = [item["id"] for item in items]
    page = {"object": "list", "data": items, "has_more": has_more}
    return _to_json(page | {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None})


def input_items(answer_id: str, state: State) -> list[dict[str, Any]]:
    """Return the items of the conversation, each with an id and the parts that clients expect."""
    found: list[dict[str, Any]] = []
    for number, item in enumerate(msgspec.json.decode(state.items)):
        prefix = _PREFIXES[item["type"]]
        whole = {"id": f"{prefix}_{answer_id}i{number:x}", "status": "completed"} | item
        if item["type"] == "message" and isinstance(item["content"], str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            whole["content"] = [{"type": kind, "text": item["content"]}]
        found.append(whole)
    return found


def deleted(response_id: str) -> bytes:
    """Return the object that tells of a deletion."""
    return _to_json({"id": response_id, "object": "response", "deleted": True})
