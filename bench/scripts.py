"""The upstream's answers, built once as ready HTTP bytes: one script for each model name and letter, with and
without a usage chunk.
"""

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from bench.behaviour import Behaviour, answer_tokens

ID_PLACEHOLDER = b"chatcmpl-0000000000000000"
"""The id in prepared frames; each answer replaces it by its own, of the same length."""


@dataclass(frozen=True)
class Script:
    """One answer, ready to be written: HTTP head and role chunk, the tokens' writes, and the end."""

    behaviour: Behaviour
    head: bytes
    writes: list[bytes]
    tail: bytes


def http_answer(status: int, body: object) -> bytes:
    """Return a whole HTTP answer with a JSON body."""
    content = msgspec.json.encode(body)
    return b"HTTP/1.1 %d -\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        len(content),
        content,
    )


def error_answer(status: int, message: str, code: str | None = None) -> bytes:
    """Return an error in OpenAI's envelope."""
    error_type = "server_error" if status >= 500 else "invalid_request_error"
    return http_answer(
        status, {"error": {"message": message, "type": error_type, "param": None, "code": code}}
    )


def usage_of(behaviour: Behaviour, choices: int) -> dict[str, int]:
    """Return the usage object of one answer."""
    completion_tokens = behaviour.tokens * choices
    return {
        "prompt_tokens": behaviour.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": behaviour.prompt_tokens + completion_tokens,
    }


def http_chunk(data: bytes) -> bytes:
    """Return one event in one chunk of HTTP's chunked encoding (RFC 9112, section 7.1)."""
    event = b"data: %s\n\n" % data
    return b"%x\r\n%s\r\n" % (len(event), event)


@lru_cache(maxsize=1024)
def stream_script(model: str, letter: str, wants_usage: bool, choices: int = 1) -> Script:
    """Return a stream's script; raises ValueError if the name is not one of `bench.behaviour`.

    Each write has the next token of every choice, in events of their own.
    """
    behaviour = Behaviour.parse(model)
    shared = {
        "id": ID_PLACEHOLDER.decode(),
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
    }
    # As OpenAI does: all chunks before a usage chunk have `usage: null`; without a usage chunk, none has it.
    no_usage = {"usage": None} if wants_usage else {}

    def frame(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return b"".join(
            http_chunk(msgspec.json.encode({**shared, "choices": [{"index": index, **choice}], **no_usage}))
            for index in range(choices)
        )

    frames = [frame({"content": token}) for token in answer_tokens(letter, behaviour.tokens)][
        : behaviour.drop_after_tokens
    ]
    step = behaviour.tokens_per_write
    end = [frame({}, "stop")]
    if wants_usage:
        usage = usage_of(behaviour, choices)
        end.append(http_chunk(msgspec.json.encode({**shared, "choices": [], "usage": usage})))
    return Script(
        behaviour,
        head=b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"cache-control: no-cache\r\n"
        b"transfer-encoding: chunked\r\n\r\n" + frame({"role": "assistant", "content": ""}),
        writes=[b"".join(frames[start : start + step]) for start in range(0, len(frames), step)],
        tail=b"".join([*end, http_chunk(b"[DONE]"), b"0\r\n\r\n"]),
    )


@lru_cache(maxsize=1024)
def whole_script(model: str, letter: str, choices: int = 1) -> Script:
    """Return the script of an answer that is not streamed; raises ValueError as `stream_script` does."""
    behaviour = Behaviour.parse(model)
    message = {"role": "assistant", "content": "".join(answer_tokens(letter, behaviour.tokens))}
    choice = {"message": message, "logprobs": None, "finish_reason": "stop"}
    body = {
        "id": ID_PLACEHOLDER.decode(),
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": index, **choice} for index in range(choices)],
        "usage": usage_of(behaviour, choices),
    }
    return Script(behaviour, head=b"", writes=[], tail=http_answer(200, body))
