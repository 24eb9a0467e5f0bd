"""Code of a new key's first request, in curl, Python and JavaScript, for each kind of model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings

from accounts.model_lists import list_allows
from accounts.models import APIKey, KeyScope
from chatapi import catalog
from chatapi.models import ModelKind

_CHAT_WITH_CURL = """\
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
_WHO_AM_I = """\
curl {origin}/v1/key -H "Authorization: Bearer {secret}"
"""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code to paste."""

    id: str
    title: str
    text: str


# The id, title and template of each snippet, by the kind of model that it needs.
_TEMPLATES = {
    ModelKind.CHAT: (
        ("curl", "Chat with curl", _CHAT_WITH_CURL),
        ("python", "Chat with Python", _CHAT_WITH_PYTHON),
        ("node", "Chat with Node.js", _CHAT_WITH_NODE),
        ("responses", "Responses with Python", _RESPONSES_WITH_PYTHON),
        ("messages", "Messages with Python", _MESSAGES_WITH_PYTHON),
    ),
    ModelKind.EMBEDDINGS: (
        ("embeddings-curl", "Embeddings with curl", _EMBEDDINGS_WITH_CURL),
        ("embeddings-python", "Embeddings with Python", _EMBEDDINGS_WITH_PYTHON),
    ),
}


def usable_models(row: APIKey) -> dict[ModelKind, str]:
    """Return a served model of each kind that the key may use, preferably the default model."""
    allowed, project = set(row.allowed_models), row.project
    served = sorted(
        # False sorts before True, so the default model is the first.
        (model.id != settings.DEFAULT_MODEL, model.id, ModelKind(model.kind))
        for model in catalog.load().values()
        if model.price is not None
        and (not allowed or model.id in allowed)
        and list_allows(project.models_mode, project.listed_models, model.id)
    )
    # The last one of each kind is kept, so the preferred one comes last.
    return {kind: model for _, model, kind in reversed(served)}


def snippets(row: APIKey, secret: str, origin: str, models: Mapping[ModelKind, str]) -> Sequence[Snippet]:
    """Return first requests to each kind of model; only a look-up of the key if it can't complete."""
    may_complete = not row.scopes or KeyScope.COMPLETIONS in row.scopes
    if not models or not may_complete:
        return [Snippet("curl", "curl", _WHO_AM_I.format(origin=origin, secret=secret))]
    return [
        Snippet(name, title, template.format(origin=origin, secret=secret, model=models[kind]))
        for kind, templates in _TEMPLATES.items()
        if kind in models
        for name, title, template in templates
    ]
