"""LiteLLM as a client, with its prefix `openai/`: answers, streams with usage, tools, text completions, and
what is raised.
"""

import asyncio
import json
import os
import sys
from typing import Any

import openai

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it fetches a price list when it is imported

import litellm  # type: ignore[import-not-found]

HELLO = [{"role": "user", "content": "hello [sandbox tokens=6]"}]
ONCE = "Once upon a time [sandbox tokens=6]"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


class Answers:
    """Holds the answers that a program gets from one base URL."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def all(self) -> dict[str, Any]:
        """Return all answers by name."""
        return {
            "answer": self.answer(),
            "stream": self.stream(),
            "stream_asynchronously": asyncio.run(self.stream_asynchronously()),
            "tools": self.tools(),
            "reasoning": self.ask("sandbox-reasoning").choices[0].message.reasoning_content,
            "text": self.text(),
            "errors": {
                name: self.raised_by(name)
                for name in ("gpt-99", "status-429", "status-500", "breaks-by-error")
            },
        }

    def where(self, model: str, provider: str = "openai") -> dict[str, Any]:
        """Return LiteLLM's arguments for the service."""
        return {
            "model": f"{provider}/{model}",
            "api_base": self.base_url,
            "api_key": os.environ["API_KEY"],
            "max_retries": 0,
        }

    def ask(self, model: str, **parameters: Any) -> Any:
        """Send a completion and return it or its stream."""
        return litellm.completion(**self.where(model), messages=HELLO, **parameters)

    def answer(self) -> dict[str, Any]:
        """Return a whole answer."""
        return outline(self.ask("sandbox"))

    def stream(self) -> dict[str, Any]:
        """Return the chunks of a stream and LiteLLM's sum of them."""
        chunks = list(self.ask("sandbox", stream=True, stream_options={"include_usage": True}))
        return {"texts": [text for chunk in chunks if (text := said(chunk))]} | outline(
            litellm.stream_chunk_builder(chunks)
        )

    async def stream_asynchronously(self) -> list[str]:
        """Return the chunks of an asynchronous stream."""
        stream = await litellm.acompletion(**self.where("sandbox"), messages=HELLO, stream=True)
        return [text async for chunk in stream if (text := said(chunk))]

    def tools(self) -> dict[str, Any]:
        """Return two calls, whole and streamed."""
        whole = self.ask("sandbox-parallel-tool-calls", tools=[WEATHER])
        chunks = list(self.ask("sandbox-parallel-tool-calls", tools=[WEATHER], stream=True))
        return {"calls": calls(whole), "streamed": calls(litellm.stream_chunk_builder(chunks))}

    def text(self) -> dict[str, str]:
        """Return a text completion, whole and streamed."""
        asking = self.where("sandbox", "text-completion-openai") | {"prompt": ONCE}
        chunks = litellm.text_completion(**asking, stream=True)
        streamed = "".join(chunk.choices[0].text or "" for chunk in chunks)
        return {"whole": litellm.text_completion(**asking).choices[0].text, "streamed": streamed}

    def raised_by(self, model: str) -> tuple[str | None, str]:
        """Return the class of the error, and the text before it."""
        texts: list[str] = []
        try:
            texts.extend(said(chunk) for chunk in self.ask(model, stream=True))
        except openai.OpenAIError as error:
            return type(error).__name__, "".join(texts)
        return None, "".join(texts)


def said(chunk: Any) -> str:
    """Return the chunk's text."""
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


def outline(completion: Any) -> dict[str, Any]:
    usage = completion.usage
    return {
        "id": completion.id,
        "text": completion.choices[0].message.content,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
        "finish_reason": completion.choices[0].finish_reason,
    }


def calls(completion: Any) -> list[Any]:
    found = completion.choices[0].message.tool_calls
    return [[call.function.name, sorted(json.loads(call.function.arguments))] for call in found]


print(json.dumps({dialect: Answers(f"{os.environ['URL']}/{dialect}/v1").all() for dialect in sys.argv[1:]}))
