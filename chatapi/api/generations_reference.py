"""The OpenAPI descriptions of the routes of generations, which all protocols share."""

from typing import Final

from chatapi.wire.api_reference import REQUEST_ID, TEXT, Route, new_answer, new_parameter, new_stream

GENERATION_ID: Final = new_parameter("path", "generation_id", TEXT, "In any dialect's form.")
ROUTES: Final = (
    Route(
        method="get",
        path="/v1/generations/{generation_id}/stream",
        tag="generations",
        operation_id="resumeStream",
        summary="Stream a generation again",
        description="From its beginning, or behind the event that `Last-Event-ID` or `starting_after` names.",
        parameters=[
            GENERATION_ID,
            *(
                new_parameter(place, name, TEXT, "The `id` of the last event that has arrived.")
                for place, name in (("header", "Last-Event-ID"), ("query", "starting_after"))
            ),
        ],
        answers={200: new_stream("AnyChunk")},
        errors=(404, 410),
    ),
    Route(
        method="post",
        path="/v1/generations/{generation_id}/cancel",
        tag="generations",
        operation_id="cancelGeneration",
        summary="Cancel a generation",
        description="Its stream ends with the usage of what was generated.",
        parameters=[GENERATION_ID],
        answers={
            200: new_answer("It had ended already.", "Cancellation", REQUEST_ID),
            202: new_answer("It will end now.", "Cancellation", REQUEST_ID),
        },
        errors=(404,),
    ),
)
