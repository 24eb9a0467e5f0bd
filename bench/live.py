"""Puts chatapi before a real inference server and compares their answers, token by token; exit 1 on a
difference.

    .venv/bin/python -m bench.live      (`make live`)

The server is `transformers serve` in a virtualenv of its own (var/live-venv, about 1 GB, installed once); the
model is a tiny one with random weights, made by `tiny_model.py`. Decoding is greedy, so the same request gets
the same answer. Each request goes to the server directly and through chatapi, streamed and whole; text,
finish reason, usage and receipt must be equal.

This server differs from OpenAI's: it sends no `[DONE]`, ignores `stream_options`, puts the usage into the
chunk that has the finish reason, names the model by a path, and splits characters over tokens.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI, OpenAIError

from bench.children import PROJECT_FOLDER, free_port, running, wait_until_ready
from bench.targets import manage, own_environment

VENV = PROJECT_FOLDER / "var" / "live-venv"
REQUIREMENTS = PROJECT_FOLDER / "requirements" / "live.txt"
TORCH = "torch==2.13.0"
SERVED_MODEL = "tiny"
LOADING_SECONDS = 120
"""The longest time that the inference server may take to import PyTorch and load its model."""


@dataclass(frozen=True)
class Case:
    """One chat completion."""

    name: str
    messages: tuple[tuple[str, str], ...]
    parameters: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("cut by length", (("user", "Hello river"),), parameters={"max_tokens": 40}),
    Case(
        "system and Unicode",
        (("system", "Sei kurz."), ("user", "Grüße aus Köln, 你好")),
        parameters={"max_tokens": 60},
    ),
    Case("until it stops", (("user", "Count the tokens of every stream."),), parameters={"max_tokens": 300}),
    Case("one token", (("user", "The letter"),), parameters={"max_tokens": 1}),
)


@dataclass(frozen=True)
class Answer:
    """The parts of an answer that must be equal from both servers."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


def main() -> int:
    """Install and start both servers, compare them, and stop them."""
    step("virtualenv")
    ensure_venv()
    with tempfile.TemporaryDirectory(prefix="chatapi-live-") as folder, ExitStack() as servers:
        step("tiny model")
        model = make_model(Path(folder))
        step("inference server")
        upstream = servers.enter_context(inference_server(model, Path(folder)))
        step("chatapi")
        gateway, key = servers.enter_context(chatapi(upstream, model, Path(folder)))
        step("comparison")
        direct = OpenAI(base_url=upstream, api_key="none", max_retries=0)
        through = OpenAI(base_url=gateway, api_key=key, max_retries=0)
        differences = sum(compare(case, direct, through, str(model)) for case in CASES)
    print(f"{differences} differences")
    return 1 if differences else 0


def step(name: str) -> None:
    """Print the time and the step that begins."""
    print(f"{time.strftime('%H:%M:%S')}  {name}", flush=True)


def ensure_venv() -> None:
    """Install the locked requirements, and torch, unless they are there already."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + TORCH.encode()).hexdigest()
    stamp = VENV / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    python = VENV / "bin" / "python"
    run(sys.executable, "-m", "venv", "--clear", str(VENV))
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    run(*install, "--no-deps", "--require-hashes", "--requirement", str(REQUIREMENTS))
    run(str(python), "-m", "pip", "install", "--quiet", TORCH)
    stamp.write_text(wanted)


def make_model(folder: Path) -> Path:
    """Return the folder that tiny_model.py fills."""
    model = folder / "tiny"
    run(str(VENV / "bin" / "python"), str(PROJECT_FOLDER / "bench" / "tiny_model.py"), str(model))
    return model


@contextmanager
def inference_server(model: Path, folder: Path) -> Iterator[str]:
    """Run `transformers serve` with that model alone; yield its base URL."""
    port = free_port()
    command = [
        str(VENV / "bin" / "transformers"),
        "serve",
        str(model),
        "--device",
        "cpu",
        "--port",
        str(port),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    with running("inference-server", command, folder, environment) as child:
        wait_until_ready(child, port, "/health", seconds=LOADING_SECONDS)
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def chatapi(upstream: str, model: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Run chatapi with an empty state folder and that upstream; yield its base URL and a key, and check the
    books at the end.
    """
    environment = own_environment(folder / "state")
    catalog = folder / "catalog.toml"
    catalog.write_text(CATALOG.format(model=SERVED_MODEL, upstream=upstream, upstream_model=model))
    manage(environment, "migrate", "-v", "0")
    manage(environment, "loadcatalog", str(catalog))
    key = json.loads(manage(environment, "createkey", "--organization", "Live", "--json"))["key"]
    port = free_port()
    with running(
        "chatapi", [sys.executable, "manage.py", "serve", "--port", str(port)], folder, environment
    ) as child:
        wait_until_ready(child, port, "/readyz")
        yield f"http://127.0.0.1:{port}/openai/v1", key
    step("verifyledger")
    print(manage(environment, "verifyledger"), end="")


CATALOG = """
[[models]]
id = "{model}"
context_window = 2048
max_output_tokens = 1024

[models.price]
input_per_mtok = "1"
cached_input_per_mtok = "1"
output_per_mtok = "2"

[[models.deployments]]
engine = "openai_compatible"
base_url = "{upstream}"
upstream_model = "{upstream_model}"
"""


def compare(case: Case, direct: OpenAI, through: OpenAI, upstream_model: str) -> int:
    """Send the request streamed and whole, print a line for each, and return the number of lines that differ
    from the server's own streamed answer.

    That answer is the measure because chatapi streams from its upstream here, even if its client does not.
    """
    expected, _ = ask(case, direct, upstream_model, stream=True)
    differences = 0
    for stream in (True, False):
        try:
            got, generation_id = ask(case, through, SERVED_MODEL, stream=stream)
            receipt = receipt_of(through, generation_id)
        except OpenAIError as error:
            problems = [str(error)]
        else:
            problems = [
                *unequal(asdict(expected), asdict(got)),
                *unequal(asdict(expected), receipt, "receipt's "),
            ]
        print_lines(case, "stream" if stream else "whole", expected, problems)
        differences += bool(problems)
    return differences


def ask(case: Case, client: OpenAI, model: str, *, stream: bool) -> tuple[Answer, str]:
    """Send the request; return the answer and its id."""
    extra = {"stream_options": {"include_usage": True}} if stream else {}
    parameters = {"model": model, "temperature": 0, "seed": 1, "stream": stream, **extra, **case.parameters}
    messages: list[Any] = [{"role": role, "content": content} for role, content in case.messages]
    answer: Any = client.chat.completions.create(messages=messages, **parameters)
    return fold(list(answer) if stream else [answer])


def fold(parts: list[Any]) -> tuple[Answer, str]:
    """Return the chunks of a stream, or one whole answer, as an `Answer` and its id."""
    choices = [choice for part in parts for choice in part.choices]
    text = "".join(text_of(choice) for choice in choices)
    finish_reason = next((choice.finish_reason for choice in choices if choice.finish_reason), None)
    usage = next(part.usage for part in reversed(parts) if part.usage)
    return Answer(text, finish_reason, usage.prompt_tokens, usage.completion_tokens), parts[0].id


def text_of(choice: Any) -> str:
    """Return the text of a choice or of its chunk."""
    holder = getattr(choice, "delta", None) or choice.message
    return holder.content or ""


def receipt_of(client: OpenAI, generation_id: str) -> dict[str, Any]:
    """Return the books' record of a generation, named as in `Answer`."""
    receipt = client.get(f"/generations/{generation_id}", cast_to=dict[str, Any])
    usage = receipt["usage"]
    return {
        "finish_reason": receipt["finish_reason"],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }


def unequal(expected: dict[str, Any], got: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the differences as text."""
    return [
        f"{prefix}{name}: {expected[name]!r} became {value!r}"
        for name, value in got.items()
        if value != expected[name]
    ]


def print_lines(case: Case, way: str, expected: Answer, problems: list[str]) -> None:
    """Print one line of the table, and one more for each problem."""
    verdict = "DIFFERS" if problems else "equal"
    counted = f"{expected.prompt_tokens:5} + {expected.completion_tokens:4} tokens"
    print(
        f"          {case.name:26} {way:7} {counted} {expected.finish_reason or '':8} {verdict}", flush=True
    )
    for problem in problems:
        print(f"            {problem}")


def run(*command: str) -> None:
    """Run a command to its end; its errors go to the terminal, and a failure ends this program."""
    subprocess.run(command, cwd=PROJECT_FOLDER, check=True, stdout=subprocess.DEVNULL, timeout=900)


if __name__ == "__main__":
    sys.exit(main())
