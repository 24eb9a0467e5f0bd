"""chatapi behind chatapi: in every dialect between the two, the client gets the same as
directly.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from chatapi.wire.completion import Choice, Completion
from chatapi.wire.protocols.chat import STYLES as DIALECTS
from chatapi.wire.sse import Parser
from chatapi.wire.upstream.chunks import ChunkReader
from tests.chatapi.http_client import Answer, Client
from tests.choice_content import content_of
from tests.installation import Installation, wait_for
from tests.wire.folding import collect

pytestmark = [pytest.mark.xdist_group("chaining"), pytest.mark.timeout(120)]

UPSTREAM_MODELS = ("sandbox", "sandbox-refusal")
MESSAGES = "messages"
"""The prefix of the models for which the second asks the first as it would ask Anthropic."""
FINISH_REASONS = {
    "bitseek": {"length": "stop", "content_filter": "stop", "function_call": "tool_calls"},
    "llama": {"content_filter": "stop", "function_call": "tool_calls"},
}
"""What becomes of a finish reason where the dialect between the two has no word for it."""
TEXT_FINISH_REASONS = {
    "bitseek": {"length": "stop", "content_filter": "stop"},
    "llama": {"content_filter": "stop"},
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "custom", "custom": {"name": "shell"}},
]
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "seats": {"type": "integer"}},
    "required": ["title", "seats"],
}

CHATS: dict[str, dict[str, Any]] = {
    "text": {"said": "[sandbox tokens=40]"},
    "no text": {"said": "[sandbox tokens=0]"},
    "seed": {"seed": 7},
    "several choices": {"said": "[sandbox tokens=5]", "n": 3},
    "length": {"max_tokens": 3},
    "length in several choices": {"max_completion_tokens": 3, "n": 2},
    "length by a marker": {"said": "[sandbox tokens=3 finish=length]"},
    "content filter": {"said": "[sandbox tokens=3 finish=content_filter]"},
    "stop": {"said": "[sandbox tokens=40]", "stop": ["."]},
    "reasoning": {"said": "[sandbox reasoning_tokens=6 tokens=4]"},
    "refusal": {"model": "sandbox-refusal"},
    "tools": {"said": "[sandbox tool_calls=3]", "tools": TOOLS},
    "tools in several choices": {"said": "[sandbox tool_calls=2]", "tools": TOOLS, "n": 2},
    "reasoning and a tool": {"said": "[sandbox reasoning_tokens=3 tool_calls=1]", "tools": TOOLS},
    "legacy functions": {"functions": [{"name": "weather"}], "function_call": {"name": "weather"}},
    "log probabilities": {"said": "[sandbox tokens=4]", "logprobs": True, "top_logprobs": 2},
    "log probabilities of a refusal": {"model": "sandbox-refusal", "logprobs": True},
    "structured": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "event", "schema": SCHEMA}}
    },
}
TEXTS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "Once [sandbox tokens=9]"},
    "several prompts and choices": {"prompt": ["One [sandbox tokens=3]", "Two"], "n": 2},
    "token ids": {"prompt": [[9906, 1917]], "max_tokens": 4},
    "length": {"prompt": "Once", "max_tokens": 3},
    "echo": {"prompt": "A prompt of rather more tokens than the answer has [sandbox tokens=2]", "echo": True},
    "echo alone": {
        "prompt": "A prompt whose log probabilities matter",
        "echo": True,
        "max_tokens": 0,
        "logprobs": 1,
    },
    "log probabilities": {"prompt": "Once [sandbox tokens=4]", "logprobs": 2},
    "content filter": {"prompt": "[sandbox tokens=3 finish=content_filter]"},
}


class Pair(NamedTuple):
    """Two clients: one asks the first installation, one asks the second, whose upstream is the first."""

    direct: Client
    chained: Client


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Start two installations, one behind the other; the books of both must be right at the end."""
    with Installation(tmp_path_factory.mktemp("first")) as first:
        first.start({})
        first.output_of("loadcatalog", "chatapi/catalog/sandbox.toml")
        with Installation(tmp_path_factory.mktemp("second"), KEY_OF_THE_FIRST=first.keys["live"]) as second:
            second.start({})
            _put_behind(second, first)
            yield Pair(Client(first.url, first.keys["live"]), Client(second.url, second.keys["live"]))
            first.verify()
            second.verify()


def _put_behind(second: Installation, first: Installation) -> None:
    """Give the second a model `<dialect>/<model>` for each model of the first and each way to ask for it."""
    models = [_model(first, dialect, model) for dialect in DIALECTS for model in UPSTREAM_MODELS]
    models += [_model(first, MESSAGES, model, engine="anthropic") for model in UPSTREAM_MODELS]
    second.load_catalog("\n".join(models))
    client = Client(second.url, second.keys["live"])
    wait_for(lambda: client.complete(f"{[*DIALECTS][-1]}/{UPSTREAM_MODELS[-1]}").status == 200, "the chain")


def _model(first: Installation, dialect: str, model: str, engine: str = "openai_compatible") -> str:
    prefix = f"/{dialect}" if dialect in DIALECTS else ""
    deployment = f'engine = "{engine}", base_url = "{first.url}{prefix}/v1", upstream_model = "{model}"'
    if engine == "openai_compatible":
        deployment += ', extra_parameters = ["custom_tools"]'
    return (
        f'[[models]]\nid = "{dialect}/{model}"\ncontext_window = 131072\nmax_output_tokens = 16384\n'
        'price = { input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2" }\n'
        f'deployments = [{{ name = "first", {deployment}, api_key_env = "KEY_OF_THE_FIRST" }}]\n'
    )


def ask_chat(
    client: Client, prefix: str = "", said: str = "", model: str = "sandbox", **parameters: Any
) -> Answer:
    """Send a chat completion; `prefix` goes before the model's name."""
    messages = [{"role": "user", "content": f"Hello {said}"}]
    return client.complete(prefix + model, dialect="openai", **{"messages": messages, **parameters})


def ask_text(client: Client, prefix: str = "", **parameters: Any) -> Answer:
    """Send a text completion."""
    return client.send(
        "POST", "/openai/v1/completions", json.dumps({"model": f"{prefix}sandbox", **parameters}).encode()
    )


def read(answer: Answer, *, is_text: bool = False) -> Completion:
    """Return the answer that a stream adds up to; fails unless it is complete."""
    assert answer.status == 200, answer.body
    reader = ChunkReader(choices=8, max_chunks=10_000, is_text=is_text)
    return collect(reader.read(Parser().feed(answer.body)) + reader.end())


def spoken(choice: Choice, finish_reasons: dict[str, str]) -> dict[str, Any]:
    """Return a choice, with the finish reason in the words of the outer dialect."""
    reason = choice.finish_reason or ""
    return content_of(choice) | {"finish_reason": finish_reasons.get(reason, reason)}


def in_words_of(finish_reasons: dict[str, str], body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of a body, with their finish reasons in the words of the outer dialect."""
    return [
        choice | {"finish_reason": finish_reasons.get(choice["finish_reason"], choice["finish_reason"])}
        for choice in body["choices"]
    ]


def test_what_an_anthropic_upstream_does_not_get_is_named(pair: Pair) -> None:
    json_object = {"type": "json_object"}
    parameters: dict[str, Any] = {"seed": 7, "presence_penalty": 0, "response_format": json_object}
    for prefix, named in ((f"{MESSAGES}/", "seed, response_format"), ("openai/", None)):
        answer = ask_chat(pair.chained, prefix, **parameters)
        assert (answer.status, answer.headers["x-chatapi-ignored"]) == (200, named)
    body = {"model": f"{MESSAGES}/sandbox", "input": "Hi", "text": {"format": json_object}}
    answer = pair.chained.send("POST", "/v1/responses", json.dumps(body).encode())
    assert (answer.status, answer.headers["x-chatapi-ignored"]) == (200, "text.format")


# What is the same


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", CHATS)
def test_a_chats_body_is_the_same_as_direct(pair: Pair, dialect: str, case: str) -> None:
    direct = ask_chat(pair.direct, **CHATS[case]).json
    chained = ask_chat(pair.chained, f"{dialect}/", **CHATS[case]).json
    assert chained["choices"] == in_words_of(FINISH_REASONS.get(dialect, {}), direct)
    assert chained["usage"] == direct["usage"]
    assert chained["system_fingerprint"] == direct["system_fingerprint"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", CHATS)
def test_a_chats_stream_is_the_same_as_direct(pair: Pair, dialect: str, case: str) -> None:
    parameters = CHATS[case] | {"stream": True, "stream_options": {"include_usage": True}}
    direct, chained = (
        read(ask_chat(pair.direct, **parameters)),
        read(ask_chat(pair.chained, f"{dialect}/", **parameters)),
    )
    assert [spoken(choice, {}) for choice in chained.choices.values()] == [
        spoken(choice, FINISH_REASONS.get(dialect, {})) for choice in direct.choices.values()
    ]
    assert chained.usage == direct.usage
    assert chained.system_fingerprint == direct.system_fingerprint


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", TEXTS)
def test_a_texts_body_is_the_same_as_direct(pair: Pair, dialect: str, case: str) -> None:
    direct, chained = (
        ask_text(pair.direct, **TEXTS[case]).json,
        ask_text(pair.chained, f"{dialect}/", **TEXTS[case]).json,
    )
    assert chained["choices"] == in_words_of(TEXT_FINISH_REASONS.get(dialect, {}), direct)
    assert chained["usage"] == direct["usage"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", TEXTS)
def test_a_texts_stream_is_the_same_as_direct(pair: Pair, dialect: str, case: str) -> None:
    parameters = TEXTS[case] | {"stream": True, "stream_options": {"include_usage": True}}
    direct = read(ask_text(pair.direct, **parameters), is_text=True)
    chained = read(ask_text(pair.chained, f"{dialect}/", **parameters), is_text=True)
    assert [spoken(choice, {}) for choice in chained.choices.values()] == [
        spoken(choice, TEXT_FINISH_REASONS.get(dialect, {})) for choice in direct.choices.values()
    ]
    assert chained.usage == direct.usage


@pytest.mark.parametrize("dialect", ["openai", "opentoken", "llama"])
def test_a_stream_has_the_same_pieces_as_direct(pair: Pair, dialect: str) -> None:
    parameters: dict[str, Any] = {
        "said": "[sandbox reasoning_tokens=2 tool_calls=2]",
        "tools": TOOLS,
        "stream": True,
    }
    bodies = [
        ask_chat(pair.direct, **parameters).body,
        ask_chat(pair.chained, f"{dialect}/", **parameters).body,
    ]
    direct, chained = (
        [json.loads(event.data)["choices"] for event in Parser().feed(body) if event.data.startswith(b"{")]
        for body in bodies
    )
    assert chained == direct


ANTHROPICS = ("text", "no text", "length", "length by a marker", "content filter", "stop", "reasoning")


@pytest.mark.parametrize("case", ANTHROPICS)
def test_a_chat_is_the_same_behind_messages(pair: Pair, case: str) -> None:
    parameters = CHATS[case] | {"stream": True, "stream_options": {"include_usage": True}}
    direct, chained = (read(ask_chat(*who, **parameters)) for who in ((pair.direct, ""), behind(pair)))
    assert spoken(chained.choice(0), {}) == spoken(direct.choice(0), {})
    assert direct.usage is not None
    assert chained.usage == msgspec.structs.replace(direct.usage, cache_write_tokens=0)


def test_tools_are_called_behind_messages(pair: Pair) -> None:
    asked: dict[str, Any] = {"said": "[sandbox reasoning_tokens=3 tool_calls=2]", "tools": TOOLS[:1]}
    direct, chained = (ask_chat(*who, **asked).json for who in ((pair.direct, ""), behind(pair)))
    assert chained["choices"] == direct["choices"]
    assert chained["usage"]["total_tokens"] == direct["usage"]["total_tokens"]


def test_a_custom_tool_is_called_behind_messages(pair: Pair) -> None:
    body = ask_chat(*behind(pair), said="[sandbox tool_calls=1]", tools=TOOLS[1:]).json
    (call,) = body["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "shell")
    assert call["custom"]["input"]


def test_a_refusal_behind_messages_is_a_text_that_was_filtered(pair: Pair) -> None:
    direct, chained = (
        ask_chat(*who, model="sandbox-refusal").json["choices"][0]
        for who in ((pair.direct, ""), behind(pair))
    )
    assert chained["message"]["content"] == direct["message"]["refusal"]
    assert chained["finish_reason"] == "content_filter"


def test_messages_behind_messages(pair: Pair) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    answers = [
        client.send("POST", "/v1/messages", json.dumps(body | {"model": model}).encode()).json
        for client, model in ((pair.direct, "sandbox"), (pair.chained, f"{MESSAGES}/sandbox"))
    ]
    alike = [(each["content"], each["stop_reason"], each["usage"]) for each in answers]
    assert alike[0] == alike[1]


@pytest.mark.parametrize("case", ["several choices", "log probabilities"])
def test_what_messages_can_not_say_is_refused_by_name(pair: Pair, case: str) -> None:
    refused = ask_chat(*behind(pair), **CHATS[case])
    name = {"several choices": "n", "log probabilities": "logprobs"}[case]
    assert (refused.status, refused.error["code"], refused.error["param"]) == (
        400,
        "unsupported_parameter",
        name,
    )


def behind(pair: Pair) -> tuple[Client, str]:
    return pair.chained, f"{MESSAGES}/"


# What goes wrong


@pytest.mark.parametrize("dialect", [*DIALECTS, MESSAGES])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("marker", "status", "code"),
    [
        ("error=invalid_request", 400, "invalid_request"),
        ("error=context_length", 400, "context_length_exceeded"),
        ("error=rate_limit", 429, "upstream_rate_limited"),
        ("error=upstream_error", 502, "upstream_error"),
        ("error=overloaded", 503, "upstream_unavailable"),
        ("nonsense", 400, "invalid_sandbox_marker"),
        # A server's own failure is, one server further, its upstream's.
        ("error=server_error", 502, "upstream_error"),
        ("error=timeout", 503, "upstream_unavailable"),
    ],
)
def test_a_failure_before_the_first_token_has_its_status(
    pair: Pair, dialect: str, is_stream: bool, marker: str, status: int, code: str
) -> None:
    answer = ask_chat(pair.chained, f"{dialect}/", said=f"[sandbox {marker}]", stream=is_stream)
    assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.parametrize("dialect", [*DIALECTS, MESSAGES])
def test_how_long_to_wait_is_passed_on(pair: Pair, dialect: str) -> None:
    answer = ask_chat(pair.chained, f"{dialect}/", said="[sandbox error=rate_limit retry_after_ms=2500]")
    assert answer.headers["retry-after-ms"] == "2500"


@pytest.mark.parametrize("dialect", [*DIALECTS, MESSAGES])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("server_error", "upstream_error"),
        ("context_length", "context_length_exceeded"),
        ("rate_limit", "upstream_rate_limited"),
    ],
)
def test_a_failure_after_the_first_token_comes_after_the_same_text(
    pair: Pair, dialect: str, error: str, code: str
) -> None:
    parameters: dict[str, Any] = {"said": f"[sandbox tokens=9 error={error} after=3]", "stream": True}
    bodies = [
        ask_chat(pair.direct, **parameters).body,
        ask_chat(pair.chained, f"{dialect}/", **parameters).body,
    ]
    direct, chained = ([json.loads(event.data) for event in Parser().feed(body)[:-1]] for body in bodies)
    texts = [
        [choice["delta"].get("content") for chunk in chunks[:-1] for choice in chunk["choices"]]
        for chunks in (direct, chained)
    ]
    assert len(texts[0]) == 4
    assert texts[0] == texts[1]
    assert chained[-1]["error"]["code"] == code
