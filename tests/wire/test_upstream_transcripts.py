"""Every golden transcript, cut anywhere and damaged anyhow: the same deltas, and no surprise."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chatapi.wire.deltas import AnyDelta, ToolCall
from chatapi.wire.protocols.chat import STYLES
from chatapi.wire.sse import EventTooLargeError, Parser
from chatapi.wire.upstream.chunks import ChunkReader
from chatapi.wire.upstream.upstream_errors import UpstreamError
from tests.choice_content import content_of
from tests.wire.folding import collect

TRANSCRIPTS = {
    f"{dialect}/{path.stem}": path
    for dialect in STYLES
    for path in sorted((Path(__file__).parents[1] / "transcripts" / dialect).glob("*.sse"))
}
BODIES = {
    name: path.with_suffix(".json")
    for name, path in TRANSCRIPTS.items()
    if path.with_suffix(".json").exists()
}

Outcome = tuple[list[AnyDelta], str | None]


def new_reader(stream: bytes) -> ChunkReader:
    """Return a reader for the request that the stream answers."""
    choices = 1 + max(
        [int(index) for index in re.findall(rb'"index":(\d+),"(?:delta|logprobs)"', stream)], default=0
    )
    return ChunkReader(choices=choices, max_chunks=1000, is_text=b'"text_completion"' in stream)


def outcome(pieces: Sequence[bytes]) -> Outcome:
    """Return the deltas of a stream in these pieces until it ends or breaks, and the code of its error."""
    parser, reader, deltas = Parser(), new_reader(b"".join(pieces)), list[AnyDelta]()
    try:
        for piece in pieces:
            deltas += reader.read(parser.feed(piece))
            if reader.is_done or reader.failure:
                return deltas + reader.end(), None
        return deltas + reader.read_rest(parser.close()) + reader.end(), None
    except (UpstreamError, EventTooLargeError) as error:
        return deltas, error.failure.code if isinstance(error, UpstreamError) else "too large"


def cut(data: st.DataObject, stream: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


streams = st.sampled_from(sorted(TRANSCRIPTS)).map(lambda name: TRANSCRIPTS[name].read_bytes())
line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_is_whole_unless_it_tells_a_failure(name: str) -> None:
    _, code = outcome([TRANSCRIPTS[name].read_bytes()])
    assert (code is not None) is ("failure" in name or "error" in name)


@pytest.mark.parametrize("name", BODIES)
def test_a_whole_body_says_the_same_as_its_stream(name: str) -> None:
    stream = TRANSCRIPTS[name].read_bytes()
    reader = new_reader(stream)
    whole = collect(reader.read_answer(BODIES[name].read_bytes()) + reader.end())
    streamed = collect(outcome([stream])[0])
    assert {index: content_of(choice) for index, choice in whole.choices.items()} == {
        index: content_of(choice) for index, choice in streamed.choices.items()
    }
    assert streamed.usage in (None, whole.usage)


@given(streams, line_ends, st.data())
def test_any_split_of_any_transcript_gives_the_same_deltas(
    stream: bytes, end: bytes, data: st.DataObject
) -> None:
    whole = outcome([stream])
    stream = stream.replace(b"\n", end)
    assert outcome(cut(data, stream)) == whole
    assert outcome([stream[start : start + 3] for start in range(0, len(stream), 3)]) == whole


@given(
    streams,
    st.sampled_from([b": ping\n\n", b"id: 1\n", b"retry: 9\n\n", b"garbage\n", b"event: chunk\n"]),
    st.integers(0),
)
def test_what_is_no_data_changes_nothing(stream: bytes, noise: bytes, place: int) -> None:
    events = stream.split(b"\n\n")
    place %= len(events)
    if not events[place].startswith(b"event: "):
        assert outcome(
            [b"\n\n".join([*events[:place], noise + events[place], *events[place + 1 :]])]
        ) == outcome([stream])


@given(streams, st.binary(max_size=20), st.integers(0), st.integers(0, 40), st.data())
def test_a_damaged_transcript_is_read_or_refused_but_never_raises(
    stream: bytes, garbage: bytes, place: int, missing: int, data: st.DataObject
) -> None:
    place %= len(stream)
    damaged = stream[:place] + garbage + stream[place + missing :]
    (deltas, code), (again, same) = outcome(cut(data, damaged)), outcome([damaged])
    assert (without_new_ids(deltas), code) == (without_new_ids(again), same)


def without_new_ids(deltas: list[AnyDelta]) -> list[AnyDelta]:
    """Return the deltas with one id for all calls whose own id was damaged: they get random ones."""
    return [
        replace(delta, id=re.sub(r"^call_[0-9a-f]{32}$", "new", delta.id))
        if isinstance(delta, ToolCall) and delta.id
        else delta
        for delta in deltas
    ]


def test_a_usage_behind_the_first_delta_is_not_early_however_the_stream_is_split() -> None:
    events = TRANSCRIPTS["openai/usage-kinds"].read_bytes().split(b"\n\n")
    without_finish = [event + b"\n\n" for event in events if b'"finish_reason":"stop"' not in event]
    assert outcome(without_finish) == outcome([b"".join(without_finish)])


@given(
    st.lists(
        st.binary(max_size=40)
        | st.sampled_from([b"data: ", b"\n\n", b"\r", b'{"choices":[', b"event: error\n", b"[DONE]"])
    )
)
def test_garbage_is_refused_and_never_raises(pieces: list[bytes]) -> None:
    _, code = outcome(pieces)
    assert code in {"upstream_disconnected", "upstream_invalid_response", "upstream_error"}


@given(streams, st.integers(0))
def test_a_transcript_that_breaks_off_before_its_finish_is_never_whole(stream: bytes, place: int) -> None:
    finish = re.search(rb'"finish_reason":"|"error":|event: error', stream)
    assert finish is not None
    _, code = outcome([stream[: place % finish.start()]])
    assert code == "upstream_disconnected"
