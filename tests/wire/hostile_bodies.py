"""Request bodies of a given length, each made to cost as much as it can in another way."""

from collections.abc import Callable

Body = Callable[[int], bytes]

HEAD = b'{"model":"m","messages":[{"role":"user","content":"hi"}]'
MESSAGES = b'{"model":"m","messages":['
UNKNOWN = HEAD + b',"x":['


def repeated(head: bytes, unit: bytes, tail: bytes) -> Body:
    """Return as many units between head and tail as fit, with commas."""
    return lambda n_bytes: (
        head + b",".join([unit] * ((n_bytes - len(head) - len(tail)) // (len(unit) + 1))) + tail
    )


def named(head: bytes, member: bytes, tail: bytes) -> Body:
    """Return as many members as fit, each with another name."""

    def body(n_bytes: int) -> bytes:
        members: list[bytes] = []
        left = n_bytes - len(head) - len(tail)
        while left > 0:
            members.append(member % len(members))
            left -= len(members[-1]) + 1
        return head + b",".join(members[:-1]) + tail

    return body


def text(unit: bytes, tail: bytes = b'"}]}') -> Body:
    """Return one message whose content repeats a unit of JSON text."""
    head = MESSAGES + b'{"role":"user","content":"'
    return lambda n_bytes: head + unit * ((n_bytes - len(head) - len(tail)) // len(unit)) + tail


def parts(part: bytes) -> Body:
    """Return one message of many parts."""
    return repeated(MESSAGES + b'{"role":"user","content":[', part, b"]}]}")


FUNCTION = b'{"type":"function","function":{"name":"f"}}'
CHAT_BODIES: dict[str, Body] = {
    "floats that are large": repeated(UNKNOWN, b"1e300", b"]}"),
    "floats that are tiny": repeated(UNKNOWN, b"1e-310", b"]}"),
    "floats and a doubled name": repeated(UNKNOWN, b"2.2250738585072011e-308", b'],"x":1}'),
    "short exponents": repeated(UNKNOWN, b"12345678901234567891e99", b"]}"),
    "floats half way between two": repeated(UNKNOWN, b"9007199254740993.0", b'],"x":1}'),
    "integers of 25 digits": repeated(UNKNOWN, b"7" * 25, b"]}"),
    "integers of 399 digits": repeated(UNKNOWN, b"7" * 399, b"]}"),
    "integers of 4000 digits": repeated(UNKNOWN, b"7" * 4_000, b"]}"),
    "integers of 4000 digits, a doubled name": repeated(UNKNOWN, b"7" * 4_000, b'],"x":1}'),
    "floats of 300 digits": repeated(UNKNOWN, b"7" * 300 + b".5", b"]}"),
    "floats of 300 zeros": repeated(UNKNOWN, b"0." + b"0" * 305 + b"1", b"]}"),
    "a number out of range at the end": repeated(UNKNOWN, b"0", b",1e999]}"),
    "nested arrays": lambda n_bytes: HEAD + b',"x":' + b"[" * (n_bytes // 2) + b"]" * (n_bytes // 2) + b"}",
    "objects that open": lambda n_bytes: b'{"a":' * (n_bytes // 5),
    "nests": repeated(UNKNOWN, b"[" * 55 + b"]" * 55, b"]}"),
    "arrays": repeated(UNKNOWN, b"[]", b"]}"),
    "objects": repeated(UNKNOWN, b"{}", b"]}"),
    "objects and a doubled name": repeated(UNKNOWN, b'{"":0}', b',{"a":1,"a":2}]}'),
    "names": named(HEAD + b',"x":{', b'"%x":0', b"}}"),
    "names, one of them doubled": named(HEAD + b',"x":{', b'"%x":0', b',"0":1}}'),
    "one name": repeated(HEAD + b",", b'"a":0', b"}"),
    "unknown parameters": named(HEAD + b",", b'"%x":0', b"}"),
    "unknown parameters that are null": named(HEAD + b",", b'"%x":null', b"}"),
    "unknown parameters, one of them doubled": named(HEAD + b",", b'"%x":0', b',"0":1}'),
    "empty strings": repeated(UNKNOWN, b'""', b"]}"),
    "tiny strings": repeated(UNKNOWN, b'"a"', b"]}"),
    "tiny strings, not closed": repeated(UNKNOWN, b'"a"', b"]"),
    "NULs": text(rb"\u0000"),
    "escapes": text(rb"\u00e9"),
    "escaped quotes": text(rb"\""),
    "quotes by number": text(rb"\u0022"),
    "backslashes": text(rb"\\"),
    "lines": text(rb"\n"),
    "what looks like JSON": text(rb"[{\",\\\u0022"),
    "brackets": text(b"[{,"),
    "exponents in a text": text(b"1e300,"),
    "emoji": text("😀".encode()),
    "surrogate pairs": text(rb"\ud83d\ude00"),
    "surrogate pairs and half a one": text(rb"\ud83d\ude00", rb'\ud83d"}]}'),
    "halves of surrogate pairs": text(rb"\ud83d"),
    "a text": text(b"x"),
    "a text, not closed": text(b"x", b'"}]'),
    "a text with a wrong byte at its end": text(b"x", b'\xff"}]}'),
    "messages": repeated(MESSAGES, b'{"role":"user","content":""}', b"]}"),
    "messages of the assistant": repeated(MESSAGES, b'{"role":"assistant","content":""}', b"]}"),
    "messages of parts": repeated(
        MESSAGES, parts(b'{"type":"text","text":""}')(20_000)[len(MESSAGES) : -2], b"]}"
    ),
    "parts": parts(b'{"type":"text","text":""}'),
    "pictures": parts(b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}'),
    "remote pictures": parts(b'{"type":"image_url","image_url":{"url":"http://a.io"}}'),
    "remote pictures of an inner name": parts(
        b'{"type":"image_url","image_url":{"url":"http://' + b"a." * 900 + b'local"}}'
    ),
    "tools": repeated(HEAD + b',"tools":[', FUNCTION, b"]}"),
    "a tool's schema": named(
        HEAD + b',"tools":[{"type":"function","function":{"name":"f","parameters":{', b'"%x":{}', b"}}}]}"
    ),
    "tool calls": repeated(
        MESSAGES + b'{"role":"assistant","tool_calls":[',
        b'{"type":"function","id":"a","function":{"name":"f","arguments":""}}',
        b"]}]}",
    ),
    "functions": repeated(HEAD + b',"functions":[', b'{"name":"f"}', b"]}"),
    "allowed tools": repeated(
        HEAD
        + b',"tools":['
        + FUNCTION
        + b'],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[',
        b"{}",
        b"]}}}",
    ),
    "biases": named(HEAD + b',"logit_bias":{', b'"%d":0', b"}}"),
    "metadata": named(HEAD + b',"metadata":{', b'"%x":""', b"}}"),
    "stop sequences": repeated(HEAD + b',"stop":[', b'"a"', b"]}"),
    "an engine's parameter": named(HEAD + b',"guided_json":{', b'"%x":0', b"}}"),
    "a role": lambda n_bytes: MESSAGES + b'{"role":"' + b"r" * n_bytes + b'","content":""}]}',
    "a model": lambda n_bytes: b'{"model":"' + b"m" * n_bytes + b'","messages":[]}',
    "a name": lambda n_bytes: b'{"' + b"k" * n_bytes + b'":1,"model":5}',
    "spaces": lambda n_bytes: b" " * n_bytes,
    "commas": lambda n_bytes: b"," * n_bytes,
    "quotes": lambda n_bytes: b'"' * n_bytes,
    "a string of backslashes": lambda n_bytes: b'"' + b"\\" * n_bytes,
}
TEXT_BODIES: dict[str, Body] = {
    "token ids": repeated(b'{"model":"m","prompt":[', b"1", b"]}"),
    "prompts": repeated(b'{"model":"m","prompt":[', b'"a"', b"]}"),
    "prompts of token ids": repeated(b'{"model":"m","prompt":[', b"[1]", b"]}"),
    "prompts of two kinds": repeated(b'{"model":"m","prompt":["a",', b"1", b"]}"),
}

_TURNS = b'{"model":"m","max_tokens":9,"messages":['
_USE = b'{"role":"assistant","content":[{"type":"tool_use","id":"%x","name":"f","input":{}}]}'


def turn(role: bytes, block: bytes) -> Body:
    """Return one turn of many blocks."""
    return repeated(_TURNS + b'{"role":"' + role + b'","content":[', block, b"]}]}")


MESSAGES_BODIES: dict[str, Body] = {
    "turns": repeated(_TURNS, b'{"role":"user","content":"a"}', b"]}"),
    "turns in turns": repeated(
        _TURNS + b'{"role":"user","content":"a"},',
        b'{"role":"assistant","content":"a"},{"role":"user","content":"a"}',
        b"]}",
    ),
    "blocks": turn(b"user", b'{"type":"text","text":"a"}'),
    "blocks that are dropped": turn(b"assistant", b'{"type":"thinking"}'),
    "blocks of a wrong type": turn(b"user", b'{"type":"thought"}'),
    "pictures by URL": turn(b"user", b'{"type":"image","source":{"type":"url","url":"https://a.io"}}'),
    "documents": turn(b"user", b'{"type":"document","source":{"type":"content","content":"a"}}'),
    "results of no call": turn(b"user", b'{"type":"tool_result","tool_use_id":"1","content":[]}'),
    "calls": named(_TURNS, _USE + b',{"role":"system","content":"a"}', b"]}"),
    "one turn of calls": named(
        _TURNS + b'{"role":"assistant","content":[',
        b'{"type":"tool_use","id":"%x","name":"f","input":{}}',
        b']},{"role":"user","content":"a"}]}',
    ),
    "tools of the servers": repeated(
        _TURNS + b'{"role":"user","content":"a"}],"tools":[', b'{"type":"web_search_","name":"a"}', b"]}"
    ),
    "tools with long names": named(
        _TURNS + b'{"role":"user","content":"a"}],"tools":[',
        b'{"name":"' + b"a" * 100 + b'%x","input_schema":{}}',
        b"]}",
    ),
    "tools of the client": named(
        _TURNS + b'{"role":"user","content":"a"}],"tools":[', b'{"name":"%x","input_schema":{}}', b"]}"
    ),
}
