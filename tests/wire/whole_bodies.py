"""Bodies that together have each member of the objects that their protocol rewrites.

A member of an accepted body has another value in an accepted one, too. For this, tools and calls come in
twos, `f` and `fAAAA`, and what is refused for itself is refused here.
"""

from typing import Any

from tests.wire.request_bodies import HELLO

MARK = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
SCHEMA = {"type": "object"}
BASE64 = {"type": "base64", "data": "AAAA"}
TEXT = {"type": "text", "text": "a"}
PICTURES = [
    {"type": "image", "source": source} | MARK
    for source in (BASE64 | {"media_type": "image/png"}, {"type": "url", "url": "https://a.example/x"})
]
# A block's mark replaces that of the last one inside it, so each has one of the two.
DOCUMENTS = [
    {"type": "document", "title": "t", "context": "c", "source": source} | mark
    for source, mark in (
        (BASE64 | {"media_type": "application/pdf"}, MARK),
        ({"type": "text", "media_type": "text/plain", "data": "d"}, MARK),
        ({"type": "content", "content": "d"}, MARK),
        *(({"type": "content", "content": [each]}, {}) for each in (TEXT | MARK, *PICTURES)),
    )
]
SEARCH_RESULTS = [
    {"type": "search_result", "source": "s", "title": "t", "content": [text]} | mark
    for text, mark in ((TEXT, MARK), (TEXT | MARK, {}))
]
BLOCKS = [TEXT | MARK, *PICTURES, *DOCUMENTS, *SEARCH_RESULTS]
USE = {"type": "tool_use", "id": "u", "name": "f", "input": {}}
THOUGHTS = [
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "redacted_thinking", "data": "d"},
]
TOOLS = [{"name": "f", "input_schema": SCHEMA}, {"name": "fAAAA", "input_schema": SCHEMA}]
FORMAT = {"type": "json_schema", "schema": SCHEMA}
THINKING = {"display": "updates", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def turn(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": [*content]}


def results(**members: Any) -> dict[str, Any]:
    """Return a body whose tool answers with these members."""
    answer = {"type": "tool_result", "tool_use_id": "u"} | members
    return {"messages": [HELLO, turn("assistant", USE), turn("user", answer)]}


PROMPTS: list[dict[str, Any]] = [
    *({"messages": [turn("user", block)]} for block in BLOCKS),
    *({"messages": [HELLO, turn("assistant", block, TEXT), HELLO]} for block in (TEXT | MARK, *THOUGHTS)),
    {"messages": [HELLO, {"role": "assistant", "content": "a"}, HELLO]},
    {"messages": [HELLO, turn("assistant", {"type": "compaction", "content": "a"} | MARK), HELLO]},
    {"messages": [HELLO, turn("assistant", USE | MARK), results()["messages"][2]]},
    results(content="a", is_error=True, **MARK),
    {"messages": [HELLO, turn("assistant", USE | {"id": "uAAAA"}), results()["messages"][2]]},
    results(tool_use_id="uAAAA"),
    *(results(content=[block]) for block in BLOCKS),
    {"messages": [HELLO, {"role": "system", "content": "s"}]},
    {"messages": [HELLO, turn("system", TEXT | MARK)]},
    *(
        {"messages": [HELLO, turn("system", TEXT, {"type": kind, "tool": {"type": "tool_reference"}})]}
        for kind in ("tool_addition", "tool_removal")
    ),
    {"system": "s"},
    {"system": [TEXT | MARK]},
    {"tools": [TOOLS[0] | {"description": "d", "strict": True} | MARK]},
    {"tools": [TOOLS[0] | {"type": "bash_20250124"}]},
    *(
        {"tools": TOOLS, "tool_choice": {"type": kind, "disable_parallel_tool_use": True}}
        for kind in ("auto", "any")
    ),
    {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
    {"thinking": {"type": "enabled", "budget_tokens": 2_000} | THINKING},
    {"thinking": {"type": "adaptive"} | THINKING},
    {"output_config": {"effort": "low", "format": FORMAT}},
    {"output_format": FORMAT},
    {"metadata": {"user_id": "u"}},
]

BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
INPUT_PARTS = [
    {"type": "input_text", "text": "a"} | BREAKPOINT,
    {"type": "input_image", "image_url": "https://a.example/x", "detail": "low"} | BREAKPOINT,
    {"type": "input_image", "image_url": "https://a.example/x", "file_id": "i"},
    {"type": "input_file", "file_data": "AAAA", "filename": "n"} | BREAKPOINT,
    {"type": "input_file", "file_data": "AAAA", "file_id": "i"},
    {"type": "input_file", "file_data": "AAAA", "file_url": "https://a.example/x"},
]
PARTS = [("user", part) for part in INPUT_PARTS] + [
    ("assistant", {"type": "output_text", "text": "a"}),
    ("assistant", {"type": "refusal", "refusal": "a"}),
]
SAYS = {"type": "message", "role": "user", "content": "a"}
CALLS = [
    {"type": "function_call", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "name": "f", "input": "a"},
]
SPACE = {"id": "i", "namespace": "n", "call_id": "c"}
THOUGHT = [
    {"summary": [{"type": "summary_text", "text": "a"}]},
    {"content": [{"type": "reasoning_text", "text": "a"}]},
]
NAMESPACE = {"type": "namespace", "name": "n", "description": "d"}
FLAT_FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
FLAT_CUSTOM = {
    "type": "custom",
    "name": "f",
    "description": "d",
    "format": {"type": "grammar", "syntax": "lark", "definition": "d"},
}
FLAT_TOOLS = [FLAT_FUNCTION, FLAT_CUSTOM, FLAT_CUSTOM | {"format": {"type": "text"}}]


def offered(kind: str) -> list[dict[str, Any]]:
    """Return tools of all names that a choice of `f` in the namespace `n` can be changed to."""
    tools = [{"type": kind, "name": name} for name in ("f", "fAAAA")]
    spaces = [{"type": "namespace", "name": name, "tools": tools} for name in ("n", "nAAAA")]
    return [*tools, *spaces]


RESPONSES: list[dict[str, Any]] = [
    {"input": [SAYS | {"id": "i"}]},
    *({"input": [{"type": "message", "role": role, "content": [part]}]} for role, part in PARTS),
    *({"input": [call | SPACE]} for call in CALLS),
    *(
        {
            "input": [
                *(call | {"call_id": call_id} for call_id in ("c", "cAAAA")),
                {"type": f"{call['type']}_output", "id": "i", "call_id": "c", "output": output},
            ]
        }
        for call in CALLS
        for output in ("a", *([part] for part in INPUT_PARTS))
    ),
    *({"input": [{"type": "reasoning", "id": "i"} | said, CALLS[0] | {"call_id": "c"}]} for said in THOUGHT),
    {"input": [{"type": "item_reference", "id": "i"}]},
    {"input": [SAYS, {"type": "web_search_call", "id": "i"}]},
    *({"tools": [tool]} for tool in FLAT_TOOLS),
    *({"tools": [NAMESPACE | {"tools": [tool]}]} for tool in FLAT_TOOLS),
    *(
        {"input": [SAYS, {"type": "additional_tools", "tools": [tool]}]}
        for tool in (*FLAT_TOOLS, *(NAMESPACE | {"tools": [tool]} for tool in FLAT_TOOLS))
    ),
    *(
        {"tools": offered(kind), "tool_choice": choice}
        for kind in ("function", "custom")
        for one in ({"type": kind, "name": "f", "namespace": "n"},)
        for choice in (one, {"type": "allowed_tools", "mode": "auto", "tools": [one]})
    ),
    {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
    {"text": {"format": FORMAT | {"name": "n", "description": "d", "strict": True}}},
    {"reasoning": {"effort": "low", "summary": "auto", "context": "all_turns", "mode": "pro"}},
    {"reasoning": {"generate_summary": "auto"}},
    {"prompt_cache_options": {"mode": "explicit", "comparison_response_id": "r"}},
    {"prompt_cache_options": {"prewarm": True}},
]  # fmt: skip
OPTIONS = {"stream_options": {"include_usage": True, "include_obfuscation": True}}
WHOLE: dict[str, list[dict[str, Any]]] = {
    "chat.completions": [{"messages": [HELLO]} | OPTIONS],
    "completions": [{"prompt": "Once"} | OPTIONS],
    "embeddings": [],
    "messages": [{"messages": [HELLO], "max_tokens": 9_000} | each for each in PROMPTS],
    "messages.count_tokens": [{"messages": [HELLO]} | each for each in PROMPTS],
    "responses": [{"input": "Once"} | each for each in RESPONSES],
}
