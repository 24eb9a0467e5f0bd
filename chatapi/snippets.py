"""Code of a first request with a reader's base URL: of each protocol, in curl, Python and Node.js."""

from typing import NamedTuple

from django.http import HttpRequest
from django.urls import get_script_prefix

from chatapi.models import ModelKind


class Template(NamedTuple):
    """Code with places for a base URL, a key and a model."""

    id: str
    title: str
    text: str


CURL = """\
curl {origin}/v1/chat/completions \\
  -H "Authorization: Bearer {secret}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'
"""
_CHAT_WITH_PYTHON = """\
# pip install openai
from openai import OpenAI

client = OpenAI(
    base_url="{origin}/openai/v1",
    api_key="{secret}",
)
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Say hello."}}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
"""
_CHAT_WITH_NODE = """\
// npm install openai, and save this as hello.mjs
import OpenAI from "openai";

const client = new OpenAI({{
  baseURL: "{origin}/openai/v1",
  apiKey: "{secret}",
}});
const stream = await client.chat.completions.create({{
  model: "{model}",
  messages: [{{ role: "user", content: "Say hello." }}],
  stream: true,
}});
for await (const chunk of stream) {{
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}}
"""
_RESPONSES_WITH_PYTHON = """\
# pip install openai
from openai import OpenAI

client = OpenAI(
    base_url="{origin}/v1",
    api_key="{secret}",
)
response = client.responses.create(
    model="{model}",
    input="Say hello.",
)
print(response.output_text)
"""
_MESSAGES_WITH_PYTHON = """\
# pip install anthropic
from anthropic import Anthropic

client = Anthropic(
    base_url="{origin}",
    api_key="{secret}",
)
message = client.messages.create(
    model="{model}",
    max_tokens=200,
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(message.content[0].text)
"""
_EMBEDDINGS_WITH_CURL = """\
curl {origin}/v1/embeddings \\
  -H "Authorization: Bearer {secret}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "input": "A sentence."}}'
"""
_EMBEDDINGS_WITH_PYTHON = """\
# pip install openai
from openai import OpenAI

client = OpenAI(
    base_url="{origin}/v1",
    api_key="{secret}",
)
answer = client.embeddings.create(
    model="{model}",
    input="A sentence.",
)
print(len(answer.data[0].embedding))
"""
_RESPONSES_WITH_CURL = """\
curl {origin}/v1/responses \\
  -H "Authorization: Bearer {secret}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "input": "Say hello."}}'
"""
_RESPONSES_WITH_NODE = """\
// npm install openai, and save this as hello.mjs
import OpenAI from "openai";

const client = new OpenAI({{
  baseURL: "{origin}/v1",
  apiKey: "{secret}",
}});
const response = await client.responses.create({{
  model: "{model}",
  input: "Say hello.",
}});
console.log(response.output_text);
"""
_MESSAGES_WITH_CURL = """\
curl {origin}/v1/messages \\
  -H "x-api-key: {secret}" \\
  -H "anthropic-version: 2023-06-01" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "max_tokens": 200, "messages": [{{"role": "user", "content": "Say hello."}}]}}'
"""
_MESSAGES_WITH_NODE = """\
// npm install @anthropic-ai/sdk, and save this as hello.mjs
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({{
  baseURL: "{origin}",
  apiKey: "{secret}",
}});
const message = await client.messages.create({{
  model: "{model}",
  max_tokens: 200,
  messages: [{{ role: "user", content: "Say hello." }}],
}});
console.log(message.content[0].text);
"""
_EMBEDDINGS_WITH_NODE = """\
// npm install openai, and save this as embed.mjs
import OpenAI from "openai";

const client = new OpenAI({{
  baseURL: "{origin}/v1",
  apiKey: "{secret}",
}});
const answer = await client.embeddings.create({{
  model: "{model}",
  input: "A sentence.",
}});
console.log(answer.data[0].embedding.length);
"""

# By the name of the protocol as people read it, for each kind of model.
PROTOCOLS = {
    ModelKind.CHAT: {
        "Chat": (
            Template("curl", "curl", CURL),
            Template("python", "Python", _CHAT_WITH_PYTHON),
            Template("node", "Node.js", _CHAT_WITH_NODE),
        ),
        "Responses": (
            Template("responses-curl", "curl", _RESPONSES_WITH_CURL),
            Template("responses", "Python", _RESPONSES_WITH_PYTHON),
            Template("responses-node", "Node.js", _RESPONSES_WITH_NODE),
        ),
        "Messages": (
            Template("messages-curl", "curl", _MESSAGES_WITH_CURL),
            Template("messages", "Python", _MESSAGES_WITH_PYTHON),
            Template("messages-node", "Node.js", _MESSAGES_WITH_NODE),
        ),
    },
    ModelKind.EMBEDDINGS: {
        "Embeddings": (
            Template("embeddings-curl", "curl", _EMBEDDINGS_WITH_CURL),
            Template("embeddings-python", "Python", _EMBEDDINGS_WITH_PYTHON),
            Template("embeddings-node", "Node.js", _EMBEDDINGS_WITH_NODE),
        ),
    },
}


def base_url(request: HttpRequest) -> str:
    """Return the URL of this installation as the request's client sees it, without a slash at its end."""
    return request.build_absolute_uri(get_script_prefix()).rstrip("/")


def written(text: str, *, origin: str, key: str, model: str) -> str:
    """Return the template's text with the base URL, the key and the model."""
    return text.format(origin=origin, secret=key, model=model)
