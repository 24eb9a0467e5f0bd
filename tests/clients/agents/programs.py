"""Agents and frameworks as their documentation shows them, each with the API that it speaks by default.

python programs.py NAME     prints what the program got as a line of JSON
"""

import asyncio
import json
import os
import sys
from typing import Any

URL, API_KEY = os.environ["URL"], os.environ["API_KEY"]
BASE_URL = os.environ["BASE_URL"]
HELLO = "hello [sandbox tokens=6]"
QUESTION = "What is the weather in Paris? [sandbox tokens=6]"


def openai_agents() -> dict[str, Any]:
    """Run an agent with one tool, whole and streamed, over Responses."""
    from agents import (  # type: ignore[import-not-found]
        Agent,
        Runner,
        function_tool,
        set_default_openai_client,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_default_openai_client(AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0))
    set_tracing_disabled(True)
    cities: list[str] = []

    @function_tool  # type: ignore[untyped-decorator]
    def weather(city: str) -> str:
        """Return the weather in a city."""
        cities.append(city)
        return "sunny"

    async def run() -> dict[str, Any]:
        agent = Agent(name="Forecaster", model="sandbox-tool-call", tools=[weather])
        whole = await Runner.run(agent, QUESTION)
        streamed = Runner.run_streamed(agent, QUESTION)
        async for _ in streamed.stream_events():
            pass
        usage = whole.context_wrapper.usage
        return {
            "calls": len(cities),
            "text": whole.final_output,
            "streamed": str(streamed.final_output),
            "ids": [response.response_id for response in whole.raw_responses],
            "tokens": [usage.input_tokens, usage.output_tokens],
        }

    return asyncio.run(run())


def inspect_ai() -> dict[str, Any]:
    """Generate with a tool over Responses, as an evaluation does."""
    from inspect_ai.model import ChatMessageUser, execute_tools, get_model  # type: ignore[import-not-found]
    from inspect_ai.tool import Tool, tool  # type: ignore[import-not-found]

    @tool  # type: ignore[untyped-decorator]
    def weather() -> Tool:
        async def execute(city: str) -> str:
            """Return the weather in a city.

            Args:
                city: Name of the city.
            """
            return f"sunny in {city}"

        return execute

    async def run() -> dict[str, Any]:
        model = get_model("openai/sandbox-tool-call", base_url=BASE_URL, api_key=API_KEY, responses_api=True)
        messages: list[Any] = [ChatMessageUser(content=QUESTION)]
        called = await model.generate(messages, tools=[weather()])
        messages.append(called.message)
        messages.extend((await execute_tools(messages, [weather()])).messages)
        answered = await model.generate(messages, tools=[weather()])
        assert called.message.tool_calls
        assert answered.usage
        return {
            "calls": [call.function for call in called.message.tool_calls],
            "text": answered.completion,
            "tokens": [answered.usage.input_tokens, answered.usage.output_tokens],
        }

    return asyncio.run(run())


def langchain() -> dict[str, Any]:
    """Call a tool over Responses, whole and streamed, and embed documents."""
    from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings  # type: ignore[import-not-found]

    def weather(city: str) -> str:
        """Return the weather in a city."""
        return "sunny"

    options: Any = {"base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0}
    model = ChatOpenAI(model="sandbox-tool-call", use_responses_api=True, **options)
    agent = model.bind_tools([weather])
    called = agent.invoke(QUESTION)
    answers = [ToolMessage("sunny", tool_call_id=call["id"]) for call in called.tool_calls]
    conversation = [HumanMessage(QUESTION), called, *answers]
    embeddings = OpenAIEmbeddings(model="sandbox-embedding", check_embedding_ctx_length=False, **options)
    vectors = embeddings.embed_documents(["one", "two"])
    return {
        "calls": [call["name"] for call in called.tool_calls],
        "text": agent.invoke(conversation).text,
        "streamed": "".join(chunk.text for chunk in agent.stream(conversation)),
        "vectors": [len(vector) for vector in vectors],
        "is_repeatable": vectors[0] == embeddings.embed_query("one"),
    }


def llama_index() -> dict[str, Any]:
    """Complete over Responses and embed a text."""
    from llama_index.core.llms import ChatMessage  # type: ignore[import-not-found]
    from llama_index.embeddings.openai import OpenAIEmbedding  # type: ignore[import-not-found]
    from llama_index.llms.openai import OpenAIResponses  # type: ignore[import-not-found]

    options: Any = {"api_base": BASE_URL, "api_key": API_KEY, "max_retries": 0}
    model = OpenAIResponses(model="sandbox", context_window=8192, **options)
    messages = [ChatMessage(role="user", content=HELLO)]
    embedding = OpenAIEmbedding(model_name="sandbox-embedding", **options)
    return {
        "text": model.chat(messages).message.content,
        "streamed": "".join(piece.delta or "" for piece in model.stream_chat(messages)),
        "vector": len(embedding.get_text_embedding("one")),
    }


def anthropic() -> dict[str, Any]:
    """Call a tool over Messages, whole and streamed, with Anthropic's SDK."""
    from anthropic import Anthropic

    client = Anthropic(base_url=URL, api_key=API_KEY, max_retries=0)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool: Any = {"name": "weather", "description": "The weather in a city", "input_schema": schema}
    request: Any = {"model": "sandbox-tool-call", "max_tokens": 100, "tools": [tool]}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    called = client.messages.create(messages=messages, **request)
    call = next(block for block in called.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(messages=messages, **request) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    return {
        "calls": [call.name],
        "stop_reasons": [called.stop_reason, message.stop_reason],
        "text": text,
        "id": message.id,
        "tokens": [message.usage.input_tokens, message.usage.output_tokens],
        "counted": client.messages.count_tokens(model="sandbox", messages=messages[:1]).input_tokens,
    }


PROGRAMS = {
    program.__name__: program for program in (openai_agents, inspect_ai, langchain, llama_index, anthropic)
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
