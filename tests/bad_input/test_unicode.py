"""Characters: which of them are refused, and that all others arrive as they were sent."""

import json
import time

import pytest

from tests.bad_input.bodies import CHAT, POSTED, TEXT, body_for, chat, refusal, text
from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

LONE_SURROGATES = [
    rb"\ud800",
    rb"\udc00",
    rb"\uDFFF",
    rb"\ud800\ud800",
    rb"\udc00\ud800",
    rb"\ud83d\\ude00",
    rb"x\ud83d",
]


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("escape", LONE_SURROGATES)
def test_a_lone_surrogate_is_refused(suspect: Client, path: str, escape: bytes) -> None:
    assert refusal(suspect.send("POST", path, body_for(path).replace(b"hello", escape))) == (
        400,
        "invalid_json",
        None,
    )


@pytest.mark.parametrize("path", POSTED)
def test_nul_is_refused_wherever_it_stands(suspect: Client, path: str) -> None:
    good = body_for(path)
    for body in (
        good.replace(b"hello", rb"\u0000"),
        good[:-1] + rb',"user":"a\u0000b"}',
        good[:-1] + rb',"x":{"\u0000":1}}',
    ):
        assert refusal(suspect.send("POST", path, body)) == (400, "invalid_value", None)


KEPT = {
    "right to left": "\u202eabc\u202c",
    "zero width": "a\u200b\u200d\ufeffb",
    "an emoji of seven code points": "👩‍👩‍👧‍👦",
    "noncharacters": "\ufffe\uffff\U0010ffff",
    "private use": "\ue000",
    "control characters": "\x01\x1b[31m\x7f\x85",
    "line separators": "\u2028\u2029",
    "composed": "é",
    "decomposed": "e\u0301",
    "an escaped backslash": r"\u0000",
    "tags": "\U000e0041",
}


@pytest.mark.parametrize("case", KEPT)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_every_other_character_arrives_as_it_was_sent(
    client: Client, installation: Installation, case: str, is_ascii: bool
) -> None:
    messages = [{"role": "user", "content": KEPT[case]}]
    body = json.dumps({"model": "five", "messages": messages}, ensure_ascii=is_ascii).encode()
    assert client.send("POST", CHAT, body).status == 200
    assert installation.calls("five")[-1]["body"]["messages"] == messages


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_megabyte_of_combining_marks_is_a_text_like_any_other(client: Client, path: str) -> None:
    marks = "a" + "\u0301" * 500_000
    body = (
        text(model="sandbox", prompt=marks)
        if path == TEXT
        else chat(model="sandbox", messages=[{"role": "user", "content": marks}])
    )
    began = time.monotonic()
    assert client.send("POST", path, body).status == 200
    assert time.monotonic() - began < 5


NO_NAMES = {
    "composed": "mod\u00e9l",
    "decomposed": "mode\u0301l",
    "Cyrillic": "fi\u0475e",
    "fullwidth": "ｆｉｖｅ",
    "zero width": "fi\u200bve",
    "a newline": "five\n",
    "a space": " five",
    "empty": "",
    "markup": "<script>alert(1)</script>",
    "SQL": "five' OR '1'='1",
    "a format": "{0.__class__}%s%n",
    "a lookup": "${jndi:ldap://127.0.0.1/x}",
    "129 characters": "m" * 129,
}


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("case", NO_NAMES)
def test_a_models_name_is_plain_ascii(suspect: Client, path: str, case: str) -> None:
    body = json.dumps({**json.loads(body_for(path)), "model": NO_NAMES[case]}).encode()
    assert refusal(suspect.send("POST", path, body)) == (400, "invalid_value", "model")


@pytest.mark.parametrize("name", ["FIVE", "Five", "five.", "../five", "five%00", "five/", "fi+ve"])
def test_a_name_of_plain_ascii_is_compared_as_it_is(suspect: Client, name: str) -> None:
    status, code, _ = refusal(suspect.complete(name))
    assert (status, code) in {(404, "model_not_found"), (400, "invalid_value")}


@pytest.mark.parametrize("name", ["m\u043edel", "ｍodel", "MODEL", "model\u200b", " model", "model "])
def test_a_key_that_only_looks_like_a_parameter_is_none(suspect: Client, name: str) -> None:
    body = json.dumps({name: "five", "messages": [{"role": "user", "content": "hello"}]}).encode()
    assert refusal(suspect.send("POST", f"/openai{CHAT}", body)) == (
        400,
        "missing_required_parameter",
        "model",
    )
