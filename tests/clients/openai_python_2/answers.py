"""The usual loop, the stream helper, structured output and errors, with the openai package before its newest
major version.
"""

import json
import os
from typing import Any

import openai
from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam
from pydantic import BaseModel

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello [sandbox tokens=6]"}]


class Event(BaseModel):
    """Something to extract from a text."""

    title: str


def loop(client: OpenAI, model: str) -> list[str]:
    """Return the output of the loop in all tutorials."""
    texts = []
    for chunk in client.chat.completions.create(model=model, messages=HELLO, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            texts.append(chunk.choices[0].delta.content)
    return texts


def helped(client: OpenAI) -> dict[str, Any]:
    """Return the result of the stream helper."""
    with client.chat.completions.stream(
        model="sandbox", messages=HELLO, stream_options={"include_usage": True}
    ) as stream:
        return stream.get_final_completion().to_dict()


def parsed(client: OpenAI) -> str:
    """Return the class of a structured answer."""
    completion = client.chat.completions.parse(model="sandbox", messages=HELLO, response_format=Event)
    return type(completion.choices[0].message.parsed).__name__


def raised(client: OpenAI, model: str) -> str | None:
    """Return the class of the error that a stream raises."""
    try:
        loop(client, model)
    except openai.OpenAIError as error:
        return type(error).__name__
    return None


with OpenAI(base_url=os.environ["BASE_URL"], api_key=os.environ["API_KEY"], max_retries=0) as client:
    errors = {
        model: raised(client, model)
        for model in ("gpt-99", "status-429", "status-500", "breaks-by-error", "breaks-by-reset")
    }
    result = {
        "loop": loop(client, "sandbox"),
        "helped": helped(client),
        "parsed": parsed(client),
        "errors": errors,
    }
    print(json.dumps(result | {"version": openai.VERSION}))
