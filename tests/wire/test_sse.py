"""The server-sent events parser: the standard's own examples, every line ending, any split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapi.wire import sse
from chatapi.wire.sse import Event, Parser

LINE_ENDS = [b"\n", b"\r\n", b"\r"]


def parse(*pieces: bytes) -> list[Event]:
    parser = Parser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.close()


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [Event(b"YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [Event(b"first event"), Event(b"second event"), Event(b" third event")],
        ),
        (b"data\n\ndata\ndata\n\n", [Event(b""), Event(b"\n")]),
        (b"data:test\n\ndata: test\n\n", [Event(b"test"), Event(b"test")]),
        (
            b"event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\n",
            [Event(b"73857293", "add"), Event(b"2153", "remove")],
        ),
    ],
)
def test_it_reads_the_examples_of_the_standard(stream: bytes, events: list[Event]) -> None:
    assert parse(stream) == events


@pytest.mark.parametrize("end", LINE_ENDS)
def test_it_takes_every_line_ending(end: bytes) -> None:
    assert parse(b"data: a\n\n: ping\n\nevent: error\ndata: b\n\n".replace(b"\n", end)) == [
        Event(b"a"),
        Event(b"b", "error"),
    ]


def test_it_gives_an_event_as_soon_as_a_carriage_return_ends_it() -> None:
    parser = Parser()
    assert parser.feed(b"data: a\r\n\r") == [Event(b"a")]
    assert parser.feed(b"\ndata: b\r\n\r") == [Event(b"b")]
    assert parser.feed(b"\n") == []


def test_it_gives_the_last_event_without_its_blank_line() -> None:
    parser = Parser()
    assert parser.feed(b"data: a\n\ndata: b\n") == [Event(b"a")]
    assert parser.close() == [Event(b"b")]
    assert parser.close() == []


def test_it_skips_a_byte_order_mark_at_the_start_only() -> None:
    assert parse(b"\xef", b"\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [Event(b"a")]


def test_it_ignores_unknown_fields_and_events_without_data() -> None:
    assert parse(b"retry: 3000\n\nevent: ping\n\nnonsense\n\nevent:\ndata: a\n\n") == [Event(b"a")]


def test_a_line_that_begins_another_json_document_begins_another_event() -> None:
    events = [Event(b'{"a":1}'), Event(b'{"b":[{}]}'), Event(b"[DONE]")]
    stream = b"".join(b"data: " + event.data + b"\n" for event in events)
    assert parse(stream) == parse(*(bytes([byte]) for byte in stream)) == events
    assert Parser().feed(stream) == events[:2]


def test_a_json_document_may_be_spread_over_lines() -> None:
    lines = [b"{", b'"a": {', b'"b": {}', b"}, ", b'"c": [', b"{},", b"{}", b"]", b"}"]
    assert parse(b"".join(b"data: " + line + b"\n" for line in lines) + b"\n") == [Event(b"\n".join(lines))]


def test_it_accepts_an_event_of_exactly_the_cap() -> None:
    data = b"x" * (sse.MAX_EVENT_BYTES - len(b"data: "))
    assert parse(b"data: a\n\ndata: " + data + b"\n\n") == [Event(b"a"), Event(data)]


@pytest.mark.parametrize("end", [b"", b"\n\n"])
def test_it_refuses_an_event_over_the_cap(end: bytes) -> None:
    parser = Parser()
    parser.feed(b"data: " + b"x" * (sse.MAX_EVENT_BYTES - len(b"data: ")))
    with pytest.raises(sse.EventTooLargeError):
        parser.feed(b"x" + end)


def test_what_frame_and_comment_write_is_read_back() -> None:
    assert parse(sse.PING + sse.frame(b'{"a":1}') + b": processing\n\n") == [Event(b'{"a":1}')]


lines = st.one_of(
    st.binary(max_size=12).map(lambda value: b"data: " + value),
    st.binary(max_size=12),
    st.sampled_from([b"", b"", b"data", b"data:", b": ping", b"event: error", b"event:", b"id: 1"]),
    st.sampled_from([b"data: {}", b"data: {", b"data: }", b"data: []", b"data: [DONE]"]),
)
streams = st.lists(st.tuples(lines, st.sampled_from(LINE_ENDS)).map(b"".join), max_size=20).map(b"".join)


@given(bom=st.sampled_from([b"", b"\xef\xbb\xbf", b"\xef\xbb"]), stream=streams, data=st.data())
def test_any_split_gives_the_same_events(bom: bytes, stream: bytes, data: st.DataObject) -> None:
    stream = bom + stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = parse(stream)
    assert parse(*pieces) == whole
    assert parse(*(bytes([byte]) for byte in stream)) == whole


@given(
    st.lists(st.binary(min_size=1, max_size=40).filter(lambda data: not {10, 13} & set(data))),
    st.sampled_from(LINE_ENDS),
)
def test_every_framed_event_comes_back(payloads: list[bytes], end: bytes) -> None:
    stream = b"".join(sse.frame(payload).replace(b"\n", end) for payload in payloads)
    assert [event.data for event in parse(stream)] == payloads
