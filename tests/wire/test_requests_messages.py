"""The messages of a chat request: every role and every content part."""

from typing import Any

import pytest

from chatapi.wire.caps import MAX_CONTENT_PARTS, MAX_MESSAGES
from chatapi.wire.messages import AssistantMessage, ToolMessage
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.request_bodies import HELLO, chat, chat_refusal, messages_of

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}
TEXT = {"type": "text", "text": "Hello!"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM_CALL = {"id": "call_2", "type": "custom", "custom": {"name": "c", "input": "x"}}


SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "Hello!"}


def forwarded(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that an upstream gets."""
    body = upstream_body(
        chat(messages=messages), model="m", max_output_tokens=1, extra_parameters=frozenset()
    )
    found: list[dict[str, Any]] = body["messages"]
    return found


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "Be brief.", "name": "boss"},
        {"role": "system", "content": [TEXT, TEXT]},
        {"role": "user", "content": ""},
        {"role": "user", "content": [TEXT, PICTURE, SOUND, FILE], "name": "ann"},
        {"role": "user", "content": [TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
        {"role": "assistant", "content": "Hi."},
        {"role": "assistant", "content": [TEXT, {"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM_CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "audio": {"id": "audio_1"}},
        {"role": "tool", "content": "22 C", "tool_call_id": "call_1"},
        {"role": "tool", "content": [TEXT], "tool_call_id": "call_1"},
        {"role": "function", "content": None, "name": "f"},
    ],
)
def test_it_takes_and_forwards_every_kind_of_message(message: dict[str, Any]) -> None:
    assert forwarded([message]) == [message]


def test_a_developer_is_the_system_for_upstreams() -> None:
    """DeepSeek and many chat templates refuse the role, or leave the message out."""
    later: dict[str, Any] = {"role": "developer", "content": [TEXT]}
    as_system = later | {"role": "system"}
    assert forwarded([SYSTEM | {"role": "developer"}, ASKED, later]) == [SYSTEM, ASKED, as_system]


def test_instructions_before_a_conversation_are_one_message() -> None:
    """Many chat templates refuse a second system message."""
    developer: dict[str, Any] = {"role": "developer", "content": [TEXT, TEXT]}
    one = {"role": "system", "content": "Be brief.\n\nHello!\n\nHello!"}
    assert forwarded([SYSTEM, developer, ASKED, SYSTEM, SYSTEM]) == [one, ASKED, SYSTEM, SYSTEM]
    marked = TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}
    begun = {"type": "text", "text": "Be brief."}
    assert forwarded([SYSTEM, {"role": "system", "content": [marked]}, ASKED]) == [
        {"role": "system", "content": [begun, marked]},
        ASKED,
    ]


def test_named_instructions_stay_by_themselves() -> None:
    example = {"role": "system", "content": "Hi.", "name": "example_user"}
    assert forwarded([SYSTEM, example, ASKED]) == [SYSTEM, example, ASKED]


def test_null_members_of_a_message_are_absent() -> None:
    replayed = {
        "role": "assistant",
        "content": "Hi.",
        "refusal": None,
        "tool_calls": None,
        "function_call": None,
        "audio": None,
        "name": None,
    }
    assert messages_of(chat(messages=[replayed])) == [AssistantMessage(content="Hi.")]
    result = {"role": "tool", "content": "22 C", "tool_call_id": "call_1", "is_error": None}
    assert messages_of(chat(messages=[result])) == [ToolMessage("22 C", "call_1", is_error=None)]


def test_members_that_openai_does_not_know_are_dropped() -> None:
    replayed = {"role": "assistant", "content": "Hi.", "annotations": [], "thinking": "Hm."}
    assert messages_of(chat(messages=[replayed])) == [AssistantMessage(content="Hi.")]


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("Hello!", "", "invalid_type"),
        ({}, ".role", "missing_required_parameter"),
        ({"content": "x"}, ".role", "missing_required_parameter"),
        ({"role": None, "content": "x"}, ".role", "invalid_type"),
        ({"role": 5, "content": "x"}, ".role", "invalid_type"),
        ({"role": "wizard", "content": "x"}, ".role", "invalid_value"),
        ({"role": "User", "content": "x"}, ".role", "invalid_value"),
        ({"role": "user"}, ".content", "missing_required_parameter"),
        ({"role": "user", "content": None}, ".content", "invalid_type"),
        ({"role": "user", "content": 5}, ".content", "invalid_type"),
        ({"role": "user", "content": {}}, ".content", "invalid_type"),
        ({"role": "user", "content": []}, ".content", "invalid_value"),
        ({"role": "user", "content": ["a"]}, ".content[0]", "invalid_type"),
        ({"role": "user", "content": [TEXT, "a"]}, ".content[1]", "invalid_type"),
        ({"role": "user", "content": [TEXT] * (MAX_CONTENT_PARTS + 1)}, ".content", "invalid_value"),
        ({"role": "user", "content": "x", "name": ""}, ".name", "invalid_value"),
        ({"role": "user", "content": "x", "name": "n" * 65}, ".name", "invalid_value"),
        ({"role": "user", "content": "x", "name": 5}, ".name", "invalid_type"),
        ({"role": "system", "content": None}, ".content", "invalid_type"),
        ({"role": "system", "content": [PICTURE]}, ".content[0].type", "invalid_value"),
        ({"role": "tool", "content": [PICTURE], "tool_call_id": "c"}, ".content[0].type", "invalid_value"),
        ({"role": "tool", "content": "x"}, ".tool_call_id", "missing_required_parameter"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, ".tool_call_id", "invalid_value"),
        ({"role": "tool", "tool_call_id": "c"}, ".content", "missing_required_parameter"),
        ({"role": "function", "content": "x"}, ".name", "missing_required_parameter"),
        ({"role": "function", "name": "f"}, ".content", "missing_required_parameter"),
        ({"role": "assistant"}, ".content", "missing_required_parameter"),
        ({"role": "assistant", "content": None}, ".content", "missing_required_parameter"),
        ({"role": "assistant", "content": None, "tool_calls": []}, ".content", "missing_required_parameter"),
        ({"role": "assistant", "content": "x", "tool_calls": {}}, ".tool_calls", "invalid_type"),
        ({"role": "assistant", "content": "x", "tool_calls": [CALL] * 1_025}, ".tool_calls", "invalid_value"),
        ({"role": "assistant", "tool_calls": [CALL | {"id": None}]}, ".tool_calls[0].id", "invalid_type"),
        (
            {"role": "assistant", "tool_calls": [{"type": "function", "function": CALL["function"]}]},
            ".tool_calls[0].id",
            "missing_required_parameter",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": CALL["function"]}]},
            ".tool_calls[0].type",
            "missing_required_parameter",
        ),
        ({"role": "assistant", "tool_calls": [CALL | {"type": "x"}]}, ".tool_calls[0].type", "invalid_value"),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]},
            ".tool_calls[0].function.arguments",
            "invalid_type",
        ),
        ({"role": "assistant", "content": [PICTURE]}, ".content[0].type", "invalid_value"),
    ],
)
def test_it_names_what_is_wrong_with_a_message(message: Any, param: str, code: str) -> None:
    assert chat_refusal(messages=[HELLO, message]) == (f"messages[1]{param}", code)


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ({}, ".type", "missing_required_parameter"),
        ({"text": "x"}, ".type", "missing_required_parameter"),
        ({"type": "video"}, ".type", "invalid_value"),
        ({"type": "refusal", "refusal": "x"}, ".type", "invalid_value"),
        ({"type": "text"}, ".text", "missing_required_parameter"),
        ({"type": "text", "text": None}, ".text", "invalid_type"),
        ({"type": "image_url"}, ".image_url", "missing_required_parameter"),
        ({"type": "image_url", "image_url": "data:image/png;base64,AAAA"}, ".image_url", "invalid_type"),
        ({"type": "image_url", "image_url": {}}, ".image_url.url", "missing_required_parameter"),
        (
            {
                "type": "image_url",
                "image_url": PICTURE["image_url"] | {"detail": "x"},  # type: ignore[operator]
            },
            ".image_url.detail",
            "invalid_value",
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "x", "format": "ogg"}},
            ".input_audio.format",
            "invalid_value",
        ),
        (
            {"type": "input_audio", "input_audio": {"format": "wav"}},
            ".input_audio.data",
            "missing_required_parameter",
        ),
        ({"type": "file", "file": {}}, ".file.file_data", "invalid_value"),
        ({"type": "file", "file": {"file_data": "x", "file_id": "y"}}, ".file.file_data", "invalid_value"),
    ],
)
def test_it_names_what_is_wrong_with_a_part(part: Any, param: str, code: str) -> None:
    assert chat_refusal(messages=[{"role": "user", "content": [TEXT, part]}]) == (
        f"messages[0].content[1]{param}",
        code,
    )


def test_it_takes_messages_up_to_the_cap() -> None:
    assert len(messages_of(chat(messages=[HELLO] * MAX_MESSAGES))) == MAX_MESSAGES
    assert chat_refusal(messages=[HELLO] * (MAX_MESSAGES + 1)) == ("messages", "invalid_value")
    assert chat_refusal(messages=[]) == ("messages", "invalid_value")
