"""Arguments of a call that are dear to decode: none may take a long turn of the event loop."""

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatapi.wire.deltas import AnyDelta, Finished, Started, Text, ToolCall, Usage
from chatapi.wire.json_guard import as_object
from chatapi.wire.protocols import PROTOCOLS, Answer

ANSWER = Answer("0193ba5e0a7c7d1e8c3b5f2a9d4e6c80", 1_700_000_000, "m")
SIZE_BYTES = 8 << 20
MOST_TURN_S = 0.5
"""CPU time; measured are 0.05 s for the worst. Decoded, the numbers take 20 s, and the objects 0.4 s."""
UNITS = {"numbers": "1e-310", "objects": "{}", "texts": '"\\u00e9"', "lists": "[[]]"}


def large(unit: str) -> str:
    return '{"a":[' + ",".join([unit] * (SIZE_BYTES // (len(unit) + 1))) + "]}"


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("protocol", ["chat.completions", "messages", "responses"])
def test_large_arguments_take_no_long_turn(protocol: str, name: str) -> None:
    arguments = large(UNITS[name])
    deltas: list[AnyDelta] = [Started(), ToolCall(0, arguments, "c0", "f"), ToolCall(1, "{}", "c1", "g")]
    deltas += [Text("Done."), Finished("tool_calls"), Usage(1, 1)]
    dialect = PROTOCOLS[protocol].dialect("")
    assert dialect.encoder is not None
    encoder, folder = dialect.encoder(ANSWER), dialect.folder(ANSWER)
    turns_s = []
    for delta in deltas:
        started_at = time.thread_time()
        encoder.encode([delta])
        folder.add(delta)
        turns_s.append(time.thread_time() - started_at)
    started_at = time.thread_time()
    body = folder.body()
    turns_s.append(time.thread_time() - started_at)
    assert isinstance(body, bytes)
    assert len(body) > len(arguments)
    assert max(turns_s) < MOST_TURN_S


def has_no_lone_surrogate(text: str, decoded: object) -> bool:
    """Return whether UTF-8 can have both the text and what it means."""
    try:
        (text + json.dumps(decoded, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        return False
    return True


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
_texts = _json.map(json.dumps) | st.text(' \n{}[]"\\:,a1', max_size=12)


@given(_texts)
@example("")
@example(' {"a": 1}\n')
@example("{}x")
@example('{"a":' * 5_000 + "1" + "}" * 5_000)
@example('{"a":"\ud800"}')
@example('{"a":"\\ud800"}')
@example('{"a":"\\ud800\\udc00"}')
def test_only_the_text_of_a_whole_object_is_one(text: str) -> None:
    found = as_object(text)
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        decoded = None
    if isinstance(decoded, dict) and has_no_lone_surrogate(text, decoded):
        assert found is not None
        assert json.loads(bytes(found)) == decoded
    else:
        assert found is None
