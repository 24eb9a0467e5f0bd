"""Code of a new key's first request, in curl, Python and JavaScript."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings

from accounts.models import APIKey, KeyScope
from chatapi import catalog

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
_WHO_AM_I = """\
curl {origin}/v1/key -H "Authorization: Bearer {secret}"
"""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code to paste."""

    id: str
    title: str
    text: str


def usable_model(row: APIKey) -> str | None:
    """Return a served model that the key may use, preferably the default model."""
    served = {model.id for model in catalog.load().values() if model.price is not None}
    usable = served & set(row.allowed_models) if row.allowed_models else served
    return settings.DEFAULT_MODEL if settings.DEFAULT_MODEL in usable else min(usable, default=None)


def snippets(row: APIKey, secret: str, origin: str, model: str | None) -> Sequence[Snippet]:
    """Return a chat in three languages; only a look-up of the key if it can't complete."""
    may_complete = not row.scopes or KeyScope.COMPLETIONS in row.scopes
    if model is None or not may_complete:
        return [Snippet("curl", "curl", _WHO_AM_I.format(origin=origin, secret=secret))]
    forms = (
        ("curl", "curl", _CHAT_WITH_CURL),
        ("python", "Python", _CHAT_WITH_PYTHON),
        ("node", "Node.js", _CHAT_WITH_NODE),
    )
    return [
        Snippet(name, title, form.format(origin=origin, secret=secret, model=model))
        for name, title, form in forms
    ]
