"""ChatOpenAI as its documentation uses it: invoke, stream, tools, structured output, batches, and what is
raised.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any

import openai
from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]
from pydantic import BaseModel

HELLO = "hello [sandbox tokens=6]"


class Event(BaseModel):
    """Something to extract from a text."""

    title: str
    guests: int


class Weather(BaseModel):
    """The weather in a city."""

    city: str


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
            "structured": self.structured(),
            "batch": [message.content for message in self.model("sandbox").batch([HELLO] * 5)],
            "errors": self.errors(),
        }

    def model(self, name: str, **options: Any) -> Any:
        """Return LangChain's model of that name."""
        return ChatOpenAI(
            model=name, base_url=self.base_url, api_key=os.environ["API_KEY"], max_retries=0, **options
        )

    def answer(self) -> dict[str, Any]:
        """Return a whole answer."""
        return outline(self.model("sandbox").invoke(HELLO))

    def stream(self) -> dict[str, Any]:
        """Return the chunks of a stream and their sum."""
        chunks = list(self.model("sandbox", stream_usage=True).stream(HELLO))
        return {"texts": [chunk.content for chunk in chunks if chunk.content]} | outline(total(chunks))

    async def stream_asynchronously(self) -> list[str]:
        """Return the chunks of an asynchronous stream."""
        return [chunk.content async for chunk in self.model("sandbox").astream(HELLO) if chunk.content]

    def tools(self) -> dict[str, Any]:
        """Make two tool calls, whole and streamed, answer each, and return the model's answer."""
        agent = self.model("sandbox-parallel-tool-calls").bind_tools([Weather, Event])
        called, streamed = agent.invoke(HELLO), total(agent.stream(HELLO))
        answered = [ToolMessage("sunny", tool_call_id=call["id"]) for call in called.tool_calls]
        answer = agent.invoke([HumanMessage(HELLO), called, *answered])
        return {"calls": calls(called), "streamed": calls(streamed), "text": answer.content}

    def structured(self) -> dict[str, str]:
        """Return an object, in both ways that LangChain has."""
        model = self.model("sandbox")
        methods = ("json_schema", "function_calling")
        return {
            method: type(model.with_structured_output(Event, method=method).invoke(HELLO)).__name__
            for method in methods
        }

    def errors(self) -> dict[str, Any]:
        """Return the errors that LangChain raises."""
        models = ("gpt-99", "status-429", "status-500", "breaks-by-error")
        too_long = {"too long": self.raised_by("sandbox", "[sandbox error=context_length]")}
        return {name: self.raised_by(name, "hello") for name in models} | too_long

    def raised_by(self, model: str, prompt: str) -> tuple[str | None, str]:
        """Return the class of the error, and the text before it."""
        texts: list[str] = []
        try:
            texts.extend(chunk.content for chunk in self.model(model).stream(prompt))
        except openai.OpenAIError as error:
            return type(error).__name__, "".join(texts)
        return None, "".join(texts)


def total(chunks: Iterable[Any]) -> Any:
    """Return the message that the chunks add up to."""
    return reduce(add, chunks)


def outline(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "text": message.content,
        "usage": message.usage_metadata,
        "finish_reason": message.response_metadata["finish_reason"],
    }


def calls(message: Any) -> list[Any]:
    return [[call["name"], sorted(call["args"])] for call in message.tool_calls]


print(json.dumps({dialect: Answers(f"{os.environ['URL']}/{dialect}/v1").all() for dialect in sys.argv[1:]}))
