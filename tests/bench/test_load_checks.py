"""The load generator's checker accepts the upstream's own answers and refuses every way of being wrong."""

import re

import pytest

from bench.answers import AnswerError, Expected, check_completion, check_stream
from bench.behaviour import answer_tokens
from bench.client import Exchange
from bench.load import lags, token_arrivals
from bench.scripts import stream_script, whole_script

MODEL = "tok3-d20"
EXPECTED = Expected("q0 q1 q2", 3)


def http_body(answer: bytes) -> bytes:
    """Return the body of one of the upstream's prepared answers, out of its chunked encoding."""
    _head, _, body = answer.partition(b"\r\n\r\n")
    return re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", body).removesuffix(b"\r\n")


def stream_body(*, wants_usage: bool = True) -> bytes:
    script = stream_script(MODEL, "q", wants_usage)
    return http_body(script.head + b"".join(script.writes) + script.tail)


RIGHT = stream_body()


def problem_of(body: bytes) -> str:
    with pytest.raises(AnswerError) as caught:
        check_stream(body, EXPECTED)
    return str(caught.value)


def test_it_accepts_the_upstreams_own_stream() -> None:
    contents = check_stream(RIGHT, EXPECTED)
    assert [content.text for content in contents] == answer_tokens("q", 3)
    assert RIGHT[: contents[0].end_bytes].endswith(b'"finish_reason":null}],"usage":null}\n\n')


def test_it_accepts_comments_and_other_line_ends() -> None:
    assert check_stream(b": ping\r\n\r\n" + RIGHT.replace(b"\n", b"\r\n"), EXPECTED)


def test_it_accepts_tokens_that_were_joined() -> None:
    frames = RIGHT.split(b"\n\n")
    joined = [frames[0], frames[1].replace(b'"q0"', b'"q0 q1 q2"'), *frames[4:]]
    assert check_stream(b"\n\n".join(joined), EXPECTED)[0].text == "q0 q1 q2"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b'" q1"', b'" r1"', "wrong text"),
        (b'" q2"', b'""', "text ends early"),
        (b'"completion_tokens":3', b'"completion_tokens":4', "wrong usage"),
        (b'"prompt_tokens":7', b'"prompt_tokens":0', "wrong usage"),
        (b'"stop"', b"null", "no finish_reason"),
        (b'"stop"', b'"length"', "finish_reason length"),
        (b'"role":"assistant",', b"", "role missing, repeated or late"),
        (b'"content":" q1"', b'"role":"assistant","content":" q1"', "role missing, repeated or late"),
        (b"data: [DONE]\n\n", b"", "no [DONE]"),
        (b"data: [DONE]\n\n", b"data: [DONE]", "no [DONE]"),
        (
            b'"chat.completion.chunk"',
            b'"chat.completion"',
            "no chunk: Invalid enum value 'chat.completion' - at `$.object`",
        ),
    ],
)
def test_it_refuses_a_changed_stream(old: bytes, new: bytes, problem: str) -> None:
    assert old in RIGHT
    assert problem_of(RIGHT.replace(old, new)) == problem


def test_it_refuses_a_stream_without_usage() -> None:
    assert problem_of(stream_body(wants_usage=False)) == "no usage"


def test_it_refuses_usage_that_is_not_on_the_last_chunk() -> None:
    *frames, finish, usage, done = RIGHT.removesuffix(b"\n\n").split(b"\n\n")
    assert (
        problem_of(b"\n\n".join([*frames, usage, finish, usage, done, b""])) == "usage before the last chunk"
    )


def test_it_refuses_text_after_the_finish() -> None:
    *frames, last_token, finish, usage, done = RIGHT.removesuffix(b"\n\n").split(b"\n\n")
    assert (
        problem_of(b"\n\n".join([*frames, finish, last_token, usage, done, b""]))
        == "a choice after finish_reason"
    )


def test_it_refuses_a_second_finish() -> None:
    *frames, finish, usage, done = RIGHT.removesuffix(b"\n\n").split(b"\n\n")
    assert (
        problem_of(b"\n\n".join([*frames, finish, finish, usage, done, b""])) == "finish_reason stop and stop"
    )


def test_it_refuses_chunks_of_another_answer() -> None:
    assert problem_of(RIGHT.replace(b"chatcmpl-0", b"chatcmpl-1", 1)) == "the id changes"


@pytest.mark.parametrize("extra", [b"\n", b": ping\n\n", b"data: [DONE]\n\n", b'data: {"choices":[]}\n\n'])
def test_it_refuses_anything_after_done(extra: bytes) -> None:
    assert problem_of(RIGHT + extra) == "bytes after [DONE]"


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b'{"error":{"message":"m","type":"t","param":null,"code":"overloaded"}}', "error frame: overloaded"),
        (b'{"error":{"message":"m","type":"server_error","code":null}}', "error frame: server_error"),
        (b'{"error":"broken"}', "error frame: broken"),
        (
            b'{"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
            b'"error":{"type":"t"}}',
            "error frame: t",
        ),
    ],
)
def test_it_names_the_code_of_an_error_frame(frame: bytes, problem: str) -> None:
    start = RIGHT[: RIGHT.index(b'" q1"')].rpartition(b"data: ")[0]
    assert problem_of(start + b"data: " + frame + b"\n\ndata: [DONE]\n\n") == problem


def test_it_refuses_an_empty_stream_and_a_frame_that_is_no_json() -> None:
    assert problem_of(b"") == "no [DONE]"
    assert problem_of(b"data: hello\n\n").startswith("no chunk: JSON is malformed")


def test_it_accepts_the_upstreams_own_whole_answer() -> None:
    check_completion(http_body(whole_script(MODEL, "q").tail), EXPECTED)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"q0 q1", b"q0 r1", "wrong text"),
        (b'"total_tokens":10', b'"total_tokens":3', "wrong usage"),
        (b'"usage":', b'"use":', "no completion: Object missing required field `usage`"),
        (b'"stop"', b'"length"', "finish_reason length"),
        (b'"choices":[{', b'"choices":[],"other":[{', "0 choices"),
    ],
)
def test_it_refuses_a_changed_whole_answer(old: bytes, new: bytes, problem: str) -> None:
    body = http_body(whole_script(MODEL, "q").tail)
    assert old in body
    with pytest.raises(AnswerError, match=f"^{re.escape(problem)}$"):
        check_completion(body.replace(old, new), EXPECTED)


def test_every_token_arrives_with_the_bytes_that_complete_its_event() -> None:
    contents = check_stream(RIGHT, EXPECTED)
    cut = contents[1].end_bytes - 1  # the second token's event lacks its last byte
    exchange = Exchange("q", sent_at=9.0, parts=[(10.0, RIGHT[:cut]), (10.5, RIGHT[cut:])])
    arrivals = token_arrivals(exchange, contents)
    assert arrivals == [10.0, 10.5, 10.5]
    assert lags(arrivals, 0.02) == pytest.approx([0, 0.48, 0.46])
    assert lags(arrivals, 0) == []
