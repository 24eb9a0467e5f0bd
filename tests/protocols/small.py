"""Two small protocols, which only tests have.

`VECTORS` is like embeddings: other names, no stream, one object. `EVENTS` is like Anthropic's messages: typed
events, another envelope with statuses of its own, another form of ids; its keys come in headers of its own.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec

from chatapi.wire import request_body
from chatapi.wire.completion import Completion
from chatapi.wire.deltas import AnyDelta, Failed, Reasoning, Started, Text, Usage
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import Violation
from chatapi.wire.messages import ImagePart, ImageUrl, SystemMessage, TextPart, UserMessage
from chatapi.wire.parameters import ModelName
from chatapi.wire.prompts import Messages, Texts
from chatapi.wire.protocols import Answer, Dialect, Operation, Protocol
from chatapi.wire.protocols.envelope import ErrorAnswer, openai_error, retry_headers

# ---- like embeddings


class VectorsBody(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    model: ModelName
    input: str | Annotated[list[str], msgspec.Meta(min_length=1)]
    extras: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()


def parse_vectors(
    body: bytes, default_model: str | None = None, *, is_ticket: bool = False
) -> GenerationRequest:
    sent = request_body.read(body, VectorsBody, default_model)
    return GenerationRequest(
        model=sent.model,
        prompt=Texts(sent.input if isinstance(sent.input, str) else [*sent.input]),
        max_tokens=0,
        extras=sent.extras,
        ignored=sent.ignored,
        digest=request_body.digest("vectors", sent),
    )


class VectorsFolder(Completion):
    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def body(self) -> bytes:
        assert self.usage is not None
        data = [
            {"position": index, "vector": (self.choice(index).text or "").split()}
            for index in range(self._answer.choices_count)
        ]
        return msgspec.json.encode({"data": data, "tokens": self.usage.prompt_tokens})


VECTORS = Protocol(
    name="vectors",
    parse=parse_vectors,
    dialects={
        "openai": Dialect(
            name="openai",
            public_id="vec-{}".format,
            encoder=None,
            folder=VectorsFolder,
            envelope=openai_error,
        )
    },
    id_prefixes=("vec-",),
    model_kind="chat",
    operations=(
        Operation(
            path="/v1/vectors",
            operation_id="createVectors",
            summary="Create vectors",
            description="Answers with one object.",
            request=VectorsBody,
            example={"input": "hello"},
            answer="Vectors",
            event=None,
            schemas={"Vectors": {"type": "object", "required": ["data", "tokens"]}},
        ),
    ),
)


# ---- like Anthropic's messages


class Turn(msgspec.Struct, frozen=True):
    text: str
    picture_url: str | None = None

    def __post_init__(self) -> None:
        try:
            self.message()
        except Violation as broken:
            raise Violation("picture_url", broken.allowed, broken.code) from None

    def message(self) -> UserMessage:
        pictures = [] if self.picture_url is None else [ImagePart(ImageUrl(self.picture_url))]
        return UserMessage([TextPart(self.text), *pictures] if pictures else self.text)


class EventsBody(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    model: ModelName
    system: str | None = None
    turns: list[Turn]
    longest: Annotated[int, msgspec.Meta(ge=1)]
    person: str | None = None
    stream: bool = False
    extras: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()


def parse_events(
    body: bytes, default_model: str | None = None, *, is_ticket: bool = False
) -> GenerationRequest:
    sent = request_body.read(body, EventsBody, default_model)
    system = [SystemMessage(sent.system)] if sent.system else []
    pictures = (f"turns[{index}].picture_url" for index, turn in enumerate(sent.turns) if turn.picture_url)
    return GenerationRequest(
        model=sent.model,
        stream=sent.stream,
        prompt=Messages([*system, *(turn.message() for turn in sent.turns)]),
        max_completion_tokens=sent.longest,
        user=sent.person,
        media_param=next(pictures, None),
        extras=sent.extras,
        ignored=sent.ignored,
        digest=request_body.digest("events", sent),
        context={"person": sent.person},
    )


KEY_HEADER = "x-events-key"


def event(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind} | members))


class EventsEncoder:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def encode(self, batch: Iterable[AnyDelta]) -> bytes:
        return b"".join(frame for delta in batch for frame in self._frames(delta))

    def failed(self, failure: Failed) -> bytes:
        return event("error", error=_error(failure), request_id=self._answer.request_id)

    def _frames(self, delta: AnyDelta) -> Iterator[bytes]:
        match delta:
            case Started():
                yield event("start", id="ev_" + self._answer.id, **delta.context)
            case Reasoning():
                yield event("thought", text=delta.text)
            case Text():
                yield event("text", text=delta.text)
            case Usage():
                yield event("stop", tokens={"in": delta.prompt_tokens, "out": delta.completion_tokens})
            case Failed():
                yield self.failed(delta)


class EventsFolder(Completion):
    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def body(self) -> bytes:
        assert self.usage is not None
        blocks = [{"type": "text", "text": self.choice(0).text}]
        return msgspec.json.encode({"id": "ev_" + self._answer.id, "blocks": blocks} | self.context)


def _error(failure: Failed) -> dict[str, str]:
    return {"kind": "overloaded" if failure.status == 503 else "other", "words": failure.message}


def events_envelope(failure: Failed, *, request_id: str = "", is_invalid_stream: bool = False) -> ErrorAnswer:
    body = msgspec.json.encode({"type": "error", "error": _error(failure), "request_id": request_id})
    headers = ((b"content-type", b"application/json"), *retry_headers(failure))
    return ErrorAnswer(529 if failure.status == 503 else failure.status, headers, body)


EVENTS = Protocol(
    name="events",
    parse=parse_events,
    dialects={
        "": Dialect(
            name="",
            public_id="ev_{}".format,
            encoder=EventsEncoder,
            folder=EventsFolder,
            envelope=events_envelope,
            keep_alive=event("ping"),
            keep_alive_with_ids=event("ping"),
        )
    },
    id_prefixes=("ev_",),
    model_kind="chat",
    answer_media_type="application/events+json",
    request_id_headers=(b"x-request-id", b"events-request-id"),
    key_headers={KEY_HEADER: "", "Events-Authorization": "Token"},
    client_headers=(KEY_HEADER, "events-authorization"),
)
