"""The deltas of an answer that its client gets in one piece."""

from chatapi.wire.deltas import AnyDelta, Finished, Reasoning, Started, Text, ToolCall, Usage
from chatapi.worker.runs.held_answer import MAX_CHARS, HeldAnswer
from chatapi.worker.runs.publisher import MAX_ENTRY_DELTAS


def test_texts_of_a_choice_that_follow_each_other_are_joined() -> None:
    held = HeldAnswer()
    batches: list[list[AnyDelta]] = [
        [Started(), Reasoning("I "), Reasoning("think", 0)],
        [Text("Hel"), Text("lo"), Text("Hal", 1)],
        [Text("lo", 1), ToolCall(0, "{", id="a", name="f"), ToolCall(0, "}"), Text("!")],
    ]
    assert [held.add(batch) for batch in batches] == [[], [], []]
    assert held.taken_pieces == 0
    assert held.take() == [
        Started(),
        Reasoning("I think"),
        Text("Hello"),
        Text("Hallo", 1),
        ToolCall(0, "{", id="a", name="f"),
        ToolCall(0, "}"),
        Text("!"),
    ]
    assert held.taken_pieces == 9
    assert held.take() == []


def test_what_belongs_to_one_text_stays_beside_it() -> None:
    held = HeldAnswer()
    deltas: list[AnyDelta] = [Text("a", 0, []), Text("b"), Reasoning("", 0, "signature"), Reasoning("c")]
    held.add(deltas)
    assert held.take() == deltas


def test_no_more_is_held_than_one_entry() -> None:
    held = HeldAnswer()
    assert held.add([Text("a" * MAX_CHARS)]) == []
    assert held.add([Text("b")]) == [Text("a" * MAX_CHARS + "b")]
    alternating: list[AnyDelta] = [Text("a", number % 2) for number in range(MAX_ENTRY_DELTAS)]
    assert held.add(alternating[:-1]) == []
    assert held.add([*alternating[-1:], Text("b")]) == [*alternating, Text("b")]


def test_a_large_delta_that_was_cut_is_not_joined_again() -> None:
    parts: list[AnyDelta] = [Text("a" * MAX_CHARS) for _ in range(8)]
    published = HeldAnswer().add(parts)
    assert max(delta.content_chars for delta in published) <= 2 * MAX_CHARS
    assert sum(delta.content_chars for delta in published) == 8 * MAX_CHARS


def test_the_end_is_not_held() -> None:
    end: list[AnyDelta] = [Finished("stop"), Usage(1, 2)]
    assert HeldAnswer().add(end) == end
