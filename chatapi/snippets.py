"""Writes requests as code for curl, Python and Node.js, with the reader's base URL.

Each protocol has a `Template` of a first request; `code_of` writes any streamed request.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.urls import get_script_prefix

from chatapi.wire.protocols import protocol_of
from chatapi.wire.request_body import client_parameters


class Template(NamedTuple):
    """Code with places for a base URL, a key and a model."""

    id: str
    title: str
    text: str


_OPENAI_IN_PYTHON = """\
# pip install openai
from openai import OpenAI

client = OpenAI(
    base_url="{origin}/v1",
    api_key="{secret}",
)
"""
_OPENAI_IN_NODE = """\
import OpenAI from "openai";

const client = new OpenAI({{
  baseURL: "{origin}/v1",
  apiKey: "{secret}",
}});
"""
_ANTHROPIC_IN_PYTHON = """\
# pip install anthropic
from anthropic import Anthropic

client = Anthropic(
    base_url="{origin}",
    api_key="{secret}",
)
"""
_ANTHROPIC_IN_NODE = """\
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({{
  baseURL: "{origin}",
  apiKey: "{secret}",
}});
"""
CURL = """\
curl {origin}/v1/chat/completions \\
  -H "Authorization: Bearer {secret}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'
"""
_CHAT_WITH_PYTHON = (
    _OPENAI_IN_PYTHON.replace("{origin}", "{origin}/openai")
    + """\
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Say hello."}}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
"""
)
_CHAT_WITH_NODE = (
    "// npm install openai, and save this as hello.mjs\n"
    + _OPENAI_IN_NODE.replace("{origin}", "{origin}/openai")
    + """\
const stream = await client.chat.completions.create({{
  model: "{model}",
  messages: [{{ role: "user", content: "Say hello." }}],
  stream: true,
}});
for await (const chunk of stream) {{
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}}
"""
)
_RESPONSES_WITH_PYTHON = (
    _OPENAI_IN_PYTHON
    + """\
response = client.responses.create(
    model="{model}",
    input="Say hello.",
)
print(response.output_text)
"""
)
_MESSAGES_WITH_PYTHON = (
    _ANTHROPIC_IN_PYTHON
    + """\
message = client.messages.create(
    model="{model}",
    max_tokens=200,
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(message.content[0].text)
"""
)
_EMBEDDINGS_WITH_CURL = """\
curl {origin}/v1/embeddings \\
  -H "Authorization: Bearer {secret}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "input": "A sentence."}}'
"""
_EMBEDDINGS_WITH_PYTHON = (
    _OPENAI_IN_PYTHON
    + """\
answer = client.embeddings.create(
    model="{model}",
    input="A sentence.",
)
print(len(answer.data[0].embedding))
"""
)
_RESPONSES_WITH_CURL = """\
curl {origin}/v1/responses \\
  -H "Authorization: Bearer {secret}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "input": "Say hello."}}'
"""
_RESPONSES_WITH_NODE = (
    "// npm install openai, and save this as hello.mjs\n"
    + _OPENAI_IN_NODE
    + """\
const response = await client.responses.create({{
  model: "{model}",
  input: "Say hello.",
}});
console.log(response.output_text);
"""
)
_MESSAGES_WITH_CURL = """\
curl {origin}/v1/messages \\
  -H "x-api-key: {secret}" \\
  -H "anthropic-version: 2023-06-01" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "max_tokens": 200, "messages": [{{"role": "user", "content": "Say hello."}}]}}'
"""
_MESSAGES_WITH_NODE = (
    "// npm install @anthropic-ai/sdk, and save this as hello.mjs\n"
    + _ANTHROPIC_IN_NODE
    + """\
const message = await client.messages.create({{
  model: "{model}",
  max_tokens: 200,
  messages: [{{ role: "user", content: "Say hello." }}],
}});
console.log(message.content[0].text);
"""
)
_EMBEDDINGS_WITH_NODE = (
    "// npm install openai, and save this as embed.mjs\n"
    + _OPENAI_IN_NODE
    + """\
const answer = await client.embeddings.create({{
  model: "{model}",
  input: "A sentence.",
}});
console.log(answer.data[0].embedding.length);
"""
)

CHAT = (
    Template("curl", "curl", CURL),
    Template("python", "Python", _CHAT_WITH_PYTHON),
    Template("node", "Node.js", _CHAT_WITH_NODE),
)
RESPONSES = (
    Template("responses-curl", "curl", _RESPONSES_WITH_CURL),
    Template("responses", "Python", _RESPONSES_WITH_PYTHON),
    Template("responses-node", "Node.js", _RESPONSES_WITH_NODE),
)
MESSAGES = (
    Template("messages-curl", "curl", _MESSAGES_WITH_CURL),
    Template("messages", "Python", _MESSAGES_WITH_PYTHON),
    Template("messages-node", "Node.js", _MESSAGES_WITH_NODE),
)
EMBEDDINGS = (
    Template("embeddings-curl", "curl", _EMBEDDINGS_WITH_CURL),
    Template("embeddings-python", "Python", _EMBEDDINGS_WITH_PYTHON),
    Template("embeddings-node", "Node.js", _EMBEDDINGS_WITH_NODE),
)


def base_url(request: HttpRequest) -> str:
    """Return the URL of this installation as the request's client sees it, without a slash at its end."""
    return request.build_absolute_uri(get_script_prefix()).rstrip("/")


def written(text: str, *, origin: str, key: str, model: str) -> str:
    """Return the template's text with the base URL, the key and the model."""
    return text.format(origin=origin, secret=key, model=model)


class Streaming(NamedTuple):
    """Code around the body of a streamed request."""

    title: str
    path: str
    python_client: str
    node_client: str
    node_package: str
    method: str
    python_loop: str
    node_loop: str
    beyond_python: frozenset[str] = frozenset({"models"})
    """Parameters of the API that the SDK for Python has no name for; it sends them as they are."""


_CHUNKS_IN_PYTHON = """\
for chunk in stream:
    for choice in chunk.choices:
        print(choice.TEXT or "", end="", flush=True)
    if chunk.usage:
        print("", chunk.usage, sep="\\n")
"""
_CHUNKS_IN_NODE = """\
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.TEXT ?? "");
  if (chunk.usage) console.log("\\n", chunk.usage);
}
"""
_RESPONSES_IN_PYTHON = """\
for event in stream:
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
    elif event.type == "response.completed":
        print("", event.response.usage, sep="\\n")
"""
_RESPONSES_IN_NODE = """\
for await (const event of stream) {
  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
  if (event.type === "response.completed") console.log("\\n", event.response.usage);
}
"""
_MESSAGES_IN_PYTHON = """\
for event in stream:
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        print(event.delta.text, end="", flush=True)
    elif event.type == "message_delta":
        print("", event.usage, sep="\\n")
"""
_MESSAGES_IN_NODE = """\
for await (const event of stream) {
  if (event.type === "content_block_delta") process.stdout.write(event.delta.text ?? "");
  if (event.type === "message_delta") console.log("\\n", event.usage);
}
"""
# By the names of protocols.js. Each protocol that streams is here; a test compares them.
STREAMING = {
    "chat": Streaming(
        *("Chat completions", "/v1/chat/completions", _OPENAI_IN_PYTHON, _OPENAI_IN_NODE, "openai"),
        "client.chat.completions.create",
        _CHUNKS_IN_PYTHON.replace("TEXT", "delta.content"),
        _CHUNKS_IN_NODE.replace("TEXT", "delta?.content"),
    ),
    "responses": Streaming(
        *("Responses", "/v1/responses", _OPENAI_IN_PYTHON, _OPENAI_IN_NODE, "openai"),
        "client.responses.create",
        _RESPONSES_IN_PYTHON,
        _RESPONSES_IN_NODE,
    ),
    "messages": Streaming(
        *("Messages", "/v1/messages", _ANTHROPIC_IN_PYTHON, _ANTHROPIC_IN_NODE, "@anthropic-ai/sdk"),
        "client.messages.create",
        _MESSAGES_IN_PYTHON,
        _MESSAGES_IN_NODE,
        frozenset({"models", "output_format", "temperature", "top_k", "top_p"}),
    ),
    "completions": Streaming(
        *("Text completions", "/v1/completions", _OPENAI_IN_PYTHON, _OPENAI_IN_NODE, "openai"),
        "client.completions.create",
        _CHUNKS_IN_PYTHON.replace("TEXT", "text"),
        _CHUNKS_IN_NODE.replace("TEXT", "text"),
    ),
}
_to_json = partial(json.dumps, ensure_ascii=False)


def code_of(protocol: str, *, origin: str, key: str, body: Mapping[str, Any]) -> dict[str, str]:
    """Return a streamed request with this body as code, by client.

    `protocol` is a key of `STREAMING`; `origin` ends in the prefix of a dialect, if one is chosen.
    """
    its = STREAMING[protocol]
    as_json = "{\n" + _members(body, '"{}": {}', _to_json) + "\n}"
    known = {*client_parameters(protocol_of(its.path).operations[0].request)} - its.beyond_python
    named = {name: value for name, value in body.items() if name in known}
    if beyond := {name: value for name, value in body.items() if name not in known}:
        named["extra_body"] = beyond
    clients = {"origin": origin, "secret": key}
    return {
        "curl": (
            f"curl -N {origin}{its.path} \\\n"
            f'  -H "Authorization: Bearer {key}" \\\n'
            '  -H "Content-Type: application/json" \\\n'
            f"  -d {shlex.quote(as_json)}\n"
        ),
        "python": (
            its.python_client.format(**clients)
            + f"stream = {its.method}(\n{_members(named, '{}={}', repr)}\n)\n"
            + its.python_loop
        ),
        "node": (
            f"// npm install {its.node_package}, and save this as request.mjs\n"
            + its.node_client.format(**clients)
            + f"const stream = await {its.method}({as_json});\n"
            + its.node_loop
        ),
    }


def first_request(request: HttpRequest, model: str) -> str:
    """Return a streamed chat in curl, with the reader's base URL and `YOUR_KEY` in the key's place."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    return code_of("chat", origin=base_url(request), key="YOUR_KEY", body=body)["curl"].rstrip()


def _members(body: Mapping[str, Any], pattern: str, literal: Callable[[Any], str]) -> str:
    """Return a line for each member, and one for each item of a list in it.

    Deeper values stay on their line: indented, a small body of many levels would become a large text.
    """
    lines = []
    for name, value in body.items():
        text = literal(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"    {literal(each)}" for each in value) + "\n  ]"
        lines.append(f"  {pattern.format(name, text)}")
    return ",\n".join(lines)
