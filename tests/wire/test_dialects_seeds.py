"""The documents' own examples: ours are the same, time, id and the documents' abbreviations aside."""

import json
import re
from typing import Any

import pytest

from tests.wire.dialect_cases import SEEDS

BITSEEK_TEXT = """\
data: {"id":"stream:chat:1","object":"chat.completion","created":1773042793,"model":"","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}

data: {"id":"stream:chat:1","object":"chat.completion","created":1773042794,"model":"","choices":[{"index":0,"delta":{"content":" world"},"finish_reason":null}]}

data: {"id":"stream:chat:1","object":"chat.completion","created":1773042795,"model":"","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}

"""  # noqa: E501
BITSEEK_TOOL_CALL = """\
data: {"id":"stream:chat:2","object":"chat.completion","created":1773042793,"model":"","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"get_weather","arguments":"{\\"city\\":\\"Singapore\\"}"}}]},"finish_reason":null}]}

data: {"id":"stream:chat:2","object":"chat.completion","created":1773042794,"model":"","choices":[{"index":0,"delta":{"content":""},"finish_reason":"tool_calls"}]}

"""  # noqa: E501
BITSEEK_CHAT = """\
data: {"id":"stream:chat:26e9476e-14e9-4165-915a-723ccbbaa5ad","object":"chat.completion","created":1773042793,"model":"","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}

data: {"id":"stream:chat:26e9476e-14e9-4165-915a-723ccbbaa5ad","object":"chat.completion","created":1773042793,"model":"","choices":[{"index":0,"delta":{"content":"! How"},"finish_reason":null}]}

data: {"id":"stream:chat:c51514fb-eaec-4f38-9bd9-6497993161c7","object":"chat.completion","created":1773044133,"model":"","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]}

"""  # noqa: E501
OPENTOKEN = """\
data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"google/gemini-3-flash","choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"google/gemini-3-flash","choices":[{"index":0,"delta":{"content":"Packets "},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"google/gemini-3-flash","choices":[{"index":0,"delta":{"content":"in flight"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"google/gemini-3-flash","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

"""  # noqa: E501
OPENTOKEN_USAGE = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "google/gemini-3-flash",
    "choices": [],
    "usage": {"prompt_tokens": 12, "completion_tokens": 18, "total_tokens": 30},
}

LLAMA = {
    "seed-003-text-completion": """\
data: {"id":"cmpl-...","object":"text_completion","choices":[{"text":" Once","index":0}]}

data: {"id":"cmpl-...","object":"text_completion","choices":[{"text":" upon","index":0}]}

data: {"id":"cmpl-...","object":"text_completion","choices":[{"text":" a","index":0}]}

data: [DONE]

""",
    "seed-003-chat": """\
data: {"id":"chatcmpl-...","object":"chat.completion.chunk","choices":[{"index":0,\
"delta":{"role":"assistant"}}]}

data: {"id":"chatcmpl-...","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"}}]}

data: {"id":"chatcmpl-...","object":"chat.completion.chunk","choices":[{"index":0,\
"delta":{"content":" there"}}]}

data: {"id":"chatcmpl-...","object":"chat.completion.chunk","choices":[{"index":0,\
"delta":{},"finish_reason":"stop"}]}

data: [DONE]

""",
    "seed-003-tools": r"""
data: {"choices":[{"delta":{"role":"assistant"}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_weather","type":"function","function":{"name":"get_weather","arguments":""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"city"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\":\\\"Tokyo\\\"}"}}]}}]}

data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}

data: [DONE]

""".lstrip(),  # noqa: E501
}


def ours(dialect: str, case: str) -> str:
    return SEEDS[dialect][case].stream(dialect).decode()


def without_time_and_id(stream: str) -> str:
    return re.sub(r'"created":\d+', '"created":0', re.sub(r'"stream:chat:[^"]*"', '"stream:chat:…"', stream))


def is_part_of(theirs: Any, whole: Any) -> bool:
    """Return whether each member that the document shows is in ours; `…` at a text's end abbreviates it."""
    if isinstance(theirs, dict):
        return isinstance(whole, dict) and all(
            name in whole and is_part_of(value, whole[name]) for name, value in theirs.items()
        )
    if isinstance(theirs, list):
        return len(theirs) == len(whole) and all(map(is_part_of, theirs, whole))
    if isinstance(theirs, str) and theirs.endswith("..."):
        return isinstance(whole, str) and whole.startswith(theirs[:-3])
    return bool(theirs == whole)


@pytest.mark.parametrize(
    ("case", "document"),
    [("seed-000-text", BITSEEK_TEXT), ("seed-000-tool-call", BITSEEK_TOOL_CALL), ("seed-002", BITSEEK_CHAT)],
)
def test_bitseeks_examples_are_ours_but_for_the_usage_on_the_last_chunk(case: str, document: str) -> None:
    stream, count = re.subn(r',"usage":\{[^}]*\}', "", ours("bitseek", case))
    assert without_time_and_id(stream) == without_time_and_id(document)
    assert count == 1


def test_opentokens_example_is_ours_with_its_usage_chunk() -> None:
    frames = ours("opentoken", "seed-004").split("\n\n")
    usage = frames.pop(-3)
    assert "\n\n".join(frames) == OPENTOKEN
    assert json.loads(usage.removeprefix("data: ")) == OPENTOKEN_USAGE


@pytest.mark.parametrize("case", LLAMA)
def test_llamas_examples_are_parts_of_ours(case: str) -> None:
    theirs, whole = LLAMA[case].split("\n\n"), ours("llama", case).split("\n\n")
    if case == "seed-003-text-completion":
        # The document's stream has no last chunk, clients want one.
        assert '"finish_reason":"stop"' in whole.pop(-3)
    assert len(theirs) == len(whole)
    for document, frame in zip(theirs, whole, strict=True):
        if document.startswith("data: {"):
            assert is_part_of(json.loads(document[6:]), json.loads(frame[6:])), frame
        else:
            assert document == frame


def test_llamas_error_event_is_part_of_ours() -> None:
    event = ours("llama", "seed-003-error").split("\n\n")[-2]
    kind, data = event.split("\n")
    assert kind == "event: error"
    assert is_part_of({"message": "context overflow", "type": "server_error"}, json.loads(data[6:]))
    assert ours("llama", "seed-003-error").endswith(event + "\n\n")


def test_bitseeks_own_parser_reads_the_whole_text() -> None:
    """Follow the document's recipe: split at `data:`, add up the content, stop at `stop`."""
    content = ""
    for data in ours("bitseek", "seed-002").split("data:")[1:]:
        choice = json.loads(data)["choices"][0]
        if choice["finish_reason"] == "stop":
            break
        content += choice["delta"].get("content") or ""
    assert content == "Hello! How"
