"""Upstreams that repeat a call's name on each fragment, without ids: a complete object ends the call."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatapi.wire import json_guard
from chatapi.wire.deltas import ToolCall
from chatapi.wire.json_guard import as_object
from chatapi.wire.upstream import tool_calls
from chatapi.wire.upstream.tool_calls import Fragment, Function, ToolCallReader

FILES = {str(Path(module.__file__ or "")) for module in (tool_calls, json_guard)}
FRAGMENTS = 4_000


def read_all(pieces: Sequence[str]) -> list[ToolCall]:
    reader = ToolCallReader(0)
    fragments = (Fragment(function=Function("f", piece)) for piece in pieces)
    return [delta for fragment in fragments for delta in reader.read([fragment])]


def calls_of(deltas: Sequence[ToolCall]) -> list[str]:
    """Return the arguments of each call."""
    calls: dict[int, str] = {}
    for delta in deltas:
        calls[delta.call_index] = calls.get(delta.call_index, "") + delta.arguments
    return list(calls.values())


def expected(pieces: Sequence[str]) -> Iterator[str]:
    """Yield the arguments of each call, by parsing all of them again before each piece. White space at their
    beginning is left out.
    """
    arguments = ""
    for piece in pieces:
        if as_object(arguments) is not None:
            yield arguments
            arguments = ""
        arguments += piece if arguments else piece.lstrip(" \n")
    yield arguments


def characters_read(pieces: Sequence[str]) -> int:
    """Return the length of all texts that functions of the reader get or make."""
    total = 0

    def count(frame: FrameType, event: str, result: Any) -> None:
        nonlocal total
        if event not in {"call", "return"} or frame.f_code.co_filename not in FILES:
            return
        texts = [result] if event == "return" else frame.f_locals.values()
        total += sum(len(text) for text in texts if isinstance(text, str | bytes))

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        read_all(pieces)
    finally:
        sys.setprofile(before)
    return total


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        ('{"a":"', "word "),  # as a model writes a file
        ('{"a":"', "}"),
        ('{"a":[', "{},"),
        ("", "{"),
        ("", "}"),
        ("{}x", "}"),
        ("[", "1,"),
        ("", " "),
        ('{"a":"', "\\"),
    ],
)
def test_the_work_grows_with_the_arguments_and_not_with_their_square(first: str, piece: str) -> None:
    some, twice = (characters_read([first, *[piece] * count]) for count in (FRAGMENTS, 2 * FRAGMENTS))
    assert some > 0
    assert twice < 2.1 * some


pieces = st.lists(
    st.sampled_from(
        ["{", "}", "{}", '"', "\\", '\\"', "\\\\", '"a":', "1", " ", "\n", "\u3000", "", "[", "]", ","]
    )
    | st.sampled_from(['{"a":"', '"}', '{"a":{"b":"}', '\\""}}', '{"a":"\\\\"}', "é", "\ud800", "x"]),
    max_size=12,
)


@given(pieces)
@example(["{}", " ", "{}"])
@example(["{}", "\u3000", "{}"])
@example(['{"a":"\\', '"}', '"}', "{}"])
@example(['{"a":"\\', '\\"}', "{}"])
@example(["", " ", "{", "}", "", ""])
def test_a_call_ends_with_a_complete_object_however_it_is_cut(pieces: list[str]) -> None:
    assert calls_of(read_all(["", *pieces])) == list(expected(["", *pieces]))


@given(pieces)
def test_fragments_without_the_name_are_part_of_the_call(pieces: list[str]) -> None:
    """The reader looks at many pieces at once: at the next fragment that has the name."""
    reader = ToolCallReader(0)
    deltas = reader.read([Fragment(function=Function("f", ""))])
    for piece in pieces:
        deltas += reader.read([Fragment(function=Function(None, piece))])
    deltas += reader.read([Fragment(function=Function("f", "{}"))])
    text = "".join(pieces).lstrip(" \n")
    assert calls_of(deltas) == ([text + "{}"] if as_object(text) is None else [text, "{}"])
