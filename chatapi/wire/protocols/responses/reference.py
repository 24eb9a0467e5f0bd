"""The part of the API's reference (OpenAPI) about Responses."""

from typing import Any, Final

from chatapi.wire.api_reference import PAGE, REQUEST_ID, TEXT, Route, events, new_answer, new_parameter
from chatapi.wire.protocols.protocol import Operation
from chatapi.wire.protocols.responses.request import ResponsesRequest

_LIST = {"type": "array", "items": {"type": "object"}}
_SCHEMAS: Final[dict[str, Any]] = {
    "Response": {
        "type": "object",
        "required": ["id", "object", "created_at", "status", "model", "output", "usage", "error", "store"],
        "properties": {
            "id": TEXT,
            "object": {"const": "response"},
            "created_at": {"type": "integer"},
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]},
            "model": TEXT,
            "output": _LIST,
            "usage": {"type": ["object", "null"]},
            "error": {"type": ["object", "null"]},
            "store": {"type": "boolean"},
        },
    },
    "ResponseStreamEvent": {
        "type": "object",
        "required": ["type", "sequence_number"],
        "properties": {"type": TEXT, "sequence_number": {"type": "integer"}},
    },
    "ResponseItemList": {
        "type": "object",
        "required": ["object", "data", "first_id", "last_id", "has_more"],
        "properties": {"object": {"const": "list"}, "data": _LIST, "has_more": {"type": "boolean"}},
    },
    "InputTokens": {
        "type": "object",
        "required": ["object", "input_tokens"],
        "properties": {
            "object": {"const": "response.input_tokens"},
            "input_tokens": {"type": "integer", "minimum": 0},
        },
    },
    "DeletedResponse": {
        "type": "object",
        "required": ["id", "object", "deleted"],
        "properties": {"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}},
    },
}
CREATE: Final = Operation(
    path="/v1/responses",
    operation_id="createResponse",
    summary="Create a response",
    description="Answers with one object, or with typed server-sent events when `stream` is true.",
    request=ResponsesRequest,
    example={"input": "Say hello.", "max_output_tokens": 64, "stream": False},
    answer="Response",
    event="ResponseStreamEvent",
    schemas=_SCHEMAS,
)
COUNT: Final = Operation(
    path="/v1/responses/input_tokens",
    operation_id="countInputTokens",
    summary="Estimate the tokens of an input",
    description="Costs nothing, but counts towards the limits on requests.",
    request=ResponsesRequest,
    example={"input": "Say hello."},
    answer="InputTokens",
    event=None,
)
_ID: Final = new_parameter("path", "response_id", TEXT, "As the response object has it.")
_READ: Final = new_answer("The response as it is now, or its events.", "Response", REQUEST_ID)
ROUTES: Final = (
    Route(
        method="get",
        path="/v1/responses/{response_id}",
        tag="responses",
        operation_id="getResponse",
        summary="Read a response",
        description="While it is kept; with `stream=true` its events, from its beginning or behind "
        "`starting_after`.",
        parameters=[
            _ID,
            new_parameter("query", "stream", {"type": "boolean"}, "Answer with events."),
            new_parameter(
                "query", "starting_after", {"type": "integer", "minimum": 0}, "The last event's number."
            ),
        ],
        answers={200: _READ | {"content": _READ["content"] | events("ResponseStreamEvent")}},
        errors=(404,),
    ),
    Route(
        method="delete",
        path="/v1/responses/{response_id}",
        tag="responses",
        operation_id="deleteResponse",
        summary="Delete a response",
        description="Its input and its answer are deleted.",
        parameters=[_ID],
        answers={200: new_answer("It is deleted.", "DeletedResponse", REQUEST_ID)},
        errors=(404,),
    ),
    Route(
        method="post",
        path="/v1/responses/{response_id}/cancel",
        tag="responses",
        operation_id="cancelResponse",
        summary="Cancel a response in the background",
        description="Answers with the response; what was generated is charged.",
        parameters=[_ID],
        answers={200: new_answer("The response as it is now.", "Response", REQUEST_ID)},
        errors=(404,),
    ),
    Route(
        method="get",
        path="/v1/responses/{response_id}/input_items",
        tag="responses",
        operation_id="listInputItems",
        summary="List the input of a response",
        description="The items of the whole conversation, the newest first.",
        parameters=[
            _ID,
            *PAGE,
            new_parameter("query", "order", {"enum": ["asc", "desc"], **TEXT}, "`desc` if absent."),
        ],
        answers={200: new_answer("A page of items.", "ResponseItemList", REQUEST_ID)},
        errors=(404,),
    ),
)
