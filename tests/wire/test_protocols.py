"""The table of protocols: two small ones, put in by a test, are read, answered and refused through it alone.

`tests/chatapi/test_protocol_seam.py` asks a whole installation for them.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from accounts import authentication
from chatapi import identity
from chatapi.wire import requests
from chatapi.wire.deltas import AnyDelta, Failed, Finished, Reasoning, Started, Text, Usage
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import ParsedRequest, parse, read
from chatapi.wire.protocols import PROTOCOLS, Answer, Dialect
from chatapi.wire.protocols.chat import CHAT
from chatapi.wire.protocols.envelope import NO_RETRY, openai_error
from chatapi.wire.protocols.protocol import USUAL_KEY_HEADERS
from chatapi.wire.sse import Parser
from chatapi.wire.upstream.openai_request import upstream_body
from chatapi.wire.upstream.upstream_errors import QUOTA_TOO_SMALL
from chatapi.wire.upstream.upstream_kinds import UPSTREAM_KINDS
from tests.protocols.small import EVENTS, VECTORS

ROOT = Path(__file__).parents[2]
ID = "0193ba5e0a7c7d1e8c3b5f2a9d4e6c80"
USAGE = Usage(7, 3)


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for protocol in (VECTORS, EVENTS):
        monkeypatch.setitem(PROTOCOLS, protocol.name, protocol)


def asked(protocol: str, **members: Any) -> ParsedRequest:
    return parse(json.dumps({"model": "m"} | members).encode(), protocol, None)


def answer(parsed: ParsedRequest, request_id: str = "") -> Answer:
    asked = parsed.summary
    return Answer(ID, 1_700_000_000, asked.model, asked.choices_count, asked.include_usage, request_id)


def folded(dialect: Dialect, parsed: ParsedRequest, deltas: list[AnyDelta]) -> dict[str, Any]:
    folder = dialect.folder(answer(parsed))
    for delta in deltas:
        folder.add(delta)
    assert (folder.usage, folder.failure) == (USAGE, None)
    body = folder.body()
    assert isinstance(body, bytes)
    found: dict[str, Any] = json.loads(body)
    return found


# ---- the request


@pytest.mark.parametrize(
    ("protocol", "members"),
    [("vectors", {"input": ["a", "bc"]}), ("events", {"turns": [{"text": "abc"}], "longest": 5})],
)
def test_a_request_of_any_protocol_takes_the_same_way(protocol: str, members: dict[str, Any]) -> None:
    parsed = asked(protocol, **members, dream=1, top_k=3)
    request = requests.from_bytes(parsed.content)
    assert (request.extras, request.ignored) == ({"top_k": 3}, ("dream",))
    assert read(parsed.content) == parsed
    assert asked(protocol, **members, dream=1, top_k=3).summary.digest == parsed.summary.digest
    assert asked(protocol, **members).summary.digest != parsed.summary.digest


def test_admission_knows_what_it_can_cost() -> None:
    vectors = asked("vectors", input=["a", "bc"]).summary
    assert (vectors.choices_count, vectors.sampled_count, vectors.max_output_tokens) == (2, 2, 0)
    assert (vectors.prompts_count, vectors.prompt_bytes) == (2, len("a\nbc") + 2 * 16)
    events = asked("events", turns=[{"text": "abc"}], longest=5).summary
    assert (events.choices_count, events.max_output_tokens, events.prompt_bytes) == (1, 5, 3 + 16 + 64)


def test_any_upstream_can_be_asked_for_it() -> None:
    parsed = asked("events", system="Be brief.", turns=[{"text": "abc"}], longest=5, person="p", stream=True)
    request = requests.from_bytes(parsed.content)
    assert (UPSTREAM_KINDS[type(request.prompt)].path, request.end_user) == ("/chat/completions", "p")
    assert upstream_body(request, model="up", max_output_tokens=4, extra_parameters=frozenset()) == {
        "model": "up",
        "user": "p",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "abc"}],
        "max_completion_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = requests.from_bytes(asked("vectors", input="a").content)
    assert UPSTREAM_KINDS[type(request.prompt)].path == "/completions"


@pytest.mark.parametrize(
    ("protocol", "members", "param"),
    [
        ("vectors", {}, "input"),
        ("vectors", {"input": [5]}, "input[0]"),
        ("events", {"turns": [{"text": 5}], "longest": 5}, "turns[0].text"),
        ("events", {"turns": [], "longest": 0}, "longest"),
        (
            "events",
            {"turns": [{"text": "a", "picture_url": "file:///x"}], "longest": 5},
            "turns[0].picture_url",
        ),
    ],
)
def test_a_refusal_names_the_clients_own_parameter(
    protocol: str, members: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(protocol, **members)
    assert refused.value.param == param


def test_so_does_the_refusal_of_a_remote_picture() -> None:
    turns = [{"text": "a"}, {"text": "b", "picture_url": "https://pictures.example/a.png"}]
    with pytest.raises(InvalidRequest) as refused:
        requests.refuse_remote_media(asked("events", turns=turns, longest=5).summary)
    assert refused.value.param == "turns[1].picture_url"


# ---- the answer


def test_a_protocol_without_streams_folds_the_deltas_into_its_own_object() -> None:
    protocol, parsed = PROTOCOLS["vectors"], asked("vectors", input=["a", "b"])
    deltas: list[AnyDelta] = [
        Started(),
        Text("1 2", 0),
        Text("3 4", 1),
        Finished("stop", 0),
        Finished("stop", 1),
        USAGE,
    ]
    assert not protocol.can_stream
    assert folded(protocol.dialect("openai"), parsed, deltas) == {
        "data": [{"position": 0, "vector": ["1", "2"]}, {"position": 1, "vector": ["3", "4"]}],
        "tokens": 7,
    }


def test_a_protocol_of_typed_events_says_the_same_in_a_stream_and_in_one_object() -> None:
    protocol, parsed = PROTOCOLS["events"], asked("events", turns=[], longest=5, person="p", stream=True)
    dialect = protocol.dialect("llama")  # has one only, also for a client that prefers another
    deltas: list[AnyDelta] = [
        Started(context=requests.from_bytes(parsed.content).context),
        Reasoning("Hm."),
        Text("a"),
        Text("b"),
        Finished("stop"),
        USAGE,
    ]
    assert protocol.can_stream
    assert dialect.encoder is not None
    events = Parser().feed(dialect.encoder(answer(parsed)).encode(deltas))
    assert [found.type for found in events] == ["start", "thought", "text", "text", "stop"]
    assert json.loads(events[0].data) == {"type": "start", "id": "ev_" + ID, "person": "p"}
    assert folded(dialect, parsed, deltas) == {
        "id": "ev_" + ID,
        "blocks": [{"type": "text", "text": "ab"}],
        "person": "p",
    }


def test_a_failure_has_the_protocols_form() -> None:
    failure = Failed("No room.", code="no_deployment", status=503, retry_after_ms=1_500)
    dialect = PROTOCOLS["events"].dialect("")
    written = dialect.envelope(failure, request_id="req_1")
    error = {"type": "error", "error": {"kind": "overloaded", "words": "No room."}, "request_id": "req_1"}
    assert (written.status, json.loads(written.body)) == (529, error)
    assert (b"retry-after", b"2") in written.headers
    assert dialect.encoder is not None
    frames = dialect.encoder(answer(asked("events", turns=[], longest=5), request_id="req_1")).failed(failure)
    assert frames == b"event: error\ndata: " + written.body + b"\n\n"


def test_its_keep_alive_is_an_event_of_its_own() -> None:
    assert PROTOCOLS["events"].dialect("").keep_alive == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize("protocol", ["chat.completions", "completions", "vectors", "events"])
def test_every_id_that_clients_see_leads_back_to_the_generation(protocol: str) -> None:
    for dialect in PROTOCOLS[protocol].dialects.values():
        found = identity.parse_id(dialect.public_id(ID))
        assert found is not None
        assert found.hex == ID
    assert identity.parse_id("other-" + ID) is None


def test_only_a_protocol_writes_the_prefix_of_its_ids() -> None:
    prefixes = {prefix for row in PROTOCOLS.values() for prefix in row.id_prefixes if prefix}
    assert {"chatcmpl-", "msg_", "resp_"} <= prefixes
    prefix = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, prefixes))})")
    paths = ("accounts", "chatapi", "usage", ":!chatapi/wire", ":!*.md", ":!*.png", ":!*.woff2")
    command = ["git", "ls-files", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert len(listed) > 500
    assert [path for path in listed if prefix.search((ROOT / path).read_text(errors="replace"))] == []


# ---- the rows that are there


def test_readmes_table_of_routes_has_each_protocol() -> None:
    readme = (ROOT / "README.md").read_text()
    tested = {VECTORS.name, EVENTS.name}
    paths = [each.operations[0].path for name, each in PROTOCOLS.items() if name not in tested]
    counting = "/v1/responses/input_tokens"  # it is in docs/responses.md, to which the table leads
    assert [path for path in paths if path != counting and f"{path}`" not in readme] == []


@pytest.mark.parametrize("name", ["chat.completions", "completions"])
@pytest.mark.parametrize("dialect", CHAT.dialects)
def test_chat_and_text_completions_have_the_same_dialects(name: str, dialect: str) -> None:
    row = PROTOCOLS[name].dialect(dialect)
    assert row.name == dialect
    assert row.refuses_idle_parameters == (dialect in ("openai", "llama"))
    assert row.requires_model == (dialect != "llama")
    assert (row.keep_alive, row.keep_alive_with_ids) == (b": ping\n\n", b": ping\n")


def test_sdks_do_not_repeat_a_request_that_is_too_large_for_an_upstreams_rate_limit() -> None:
    assert NO_RETRY in openai_error(QUOTA_TOO_SMALL).headers


@pytest.mark.parametrize("name", ["chat.completions", "completions"])
def test_only_llama_tells_an_invalid_request_for_a_stream_inside_one(name: str) -> None:
    failure = Failed("Wrong.", "invalid_request_error", "invalid_value", "n", status=400)
    for dialect in PROTOCOLS[name].dialects.values():
        plain = dialect.envelope(failure)
        assert plain == openai_error(failure)
        assert json.loads(plain.body)["error"]["param"] == "n"
        written = dialect.envelope(failure, is_invalid_stream=True)
        if dialect.name == "llama":
            assert (written.status, written.headers[0][1]) == (200, b"text/event-stream; charset=utf-8")
            assert written.body.startswith(b"event: error\n")
        else:
            assert written == plain


def test_the_management_api_takes_its_keys_where_most_protocols_do() -> None:
    """`wire` imports nothing of `accounts`, and `accounts` nothing of `wire`."""
    assert USUAL_KEY_HEADERS == authentication.KEY_HEADERS
