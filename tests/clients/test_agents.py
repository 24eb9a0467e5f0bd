"""Programs that people use: coding agents, agent frameworks, evaluations and load generators, each as its
documentation shows it (`make clients`).

A coding agent calls its shell twice and then answers, because `Script.turns` of the upstream says so. What a
program says it used must be the sum of the receipts.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients import programs
from tests.installation import Installation

pytestmark = pytest.mark.timeout(300)

MODELS = """
[[models]]
id = "coding-agent"
context_window = 200000
max_output_tokens = 32000
price = {{ input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2" }}
[[models.deployments]]
name = "upstream"
engine = "openai_compatible"
base_url = "{url}/v1"
upstream_model = "{model}"
"""
RECEIPTS = """
from django.db.models import Sum
from usage.models import Generation
found = Generation.objects.filter(model="coding-agent")
sums = found.aggregate(Sum("prompt_tokens"), Sum("completion_tokens"))
print(*(each or 0 for each in sums.values()))
"""
TEXT = "the of and to in"
"""What the upstream says after its tool calls."""


def agent(
    installation: Installation, folder: Path, turns: list[tuple[str, dict[str, str]]], prompt_tokens: int
) -> None:
    """Have the model `coding-agent` make these tool calls."""
    calls = [[name, json.dumps(arguments)] for name, arguments in turns]
    installation.script(folder.name, turns=calls, prompt_tokens=prompt_tokens)
    installation.load_catalog(MODELS.format(url=installation.upstream_url, model=folder.name))


def run(command: programs.Command, folder: Path, **environment: str) -> list[str]:
    """Run the command in the folder, which is its home; return the lines it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def tool_results(installation: Installation, model: str) -> list[str]:
    """Return what the tools answered, as the upstream got it in its last call."""
    messages = installation.calls(model)[-1]["body"]["messages"]
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


def receipts(installation: Installation) -> tuple[int, int]:
    """Return the sums of all receipts of `coding-agent`: its tokens of prompts and of completions."""
    prompt, completion = map(int, installation.shell(RECEIPTS).split())
    return prompt, completion


def codex_catalog(codex: Path, folder: Path) -> list[str]:
    """Return the arguments with which Codex takes `coding-agent` for one of OpenAI's newest models.

    To these it sends all tools in an item of the input, and they run commands in a program of JavaScript.
    """
    bundled = json.loads("".join(run([codex, "debug", "models", "--bundled"], folder)))["models"]
    newest = next(model for model in bundled if model["use_responses_lite"])
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"models": [newest | {"slug": "coding-agent"}]}))
    return ["-c", f"model_catalog_json={json.dumps(str(catalog))}"]


@pytest.mark.parametrize("is_newest", [False, True], ids=["usual", "newest"])
def test_codex_runs_two_commands_and_answers(
    installation: Installation, tmp_path: Path, is_newest: bool
) -> None:
    codex = programs.node_packages("agents") / "node_modules" / ".bin" / "codex"
    commands = [
        ("functions__exec", {"input": f"text(await tools.exec_command({{cmd: 'echo {word}'}}))"})
        if is_newest
        else ("exec_command", {"cmd": f"echo {word}"})
        for word in ("first", "second")
    ]
    agent(installation, tmp_path, commands, prompt_tokens=9_000)
    before = receipts(installation)
    configuration = tmp_path / ".codex" / "config.toml"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text(programs.guide_example(installation, "responses", "toml"))
    lines = run(
        [
            codex,
            *(codex_catalog(codex, tmp_path) if is_newest else ()),
            *("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("-m", "coding-agent", "Run the two commands."),
        ],
        tmp_path,
        CHATAPI_KEY=installation.keys["live"],
    )
    events = [json.loads(line) for line in lines if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert TEXT in [item["text"].strip() for item in items if item["type"] == "agent_message"]
    first, second = tool_results(installation, tmp_path.name)
    assert ("first" in first, "second" in second) == (True, True)
    usage = events[-1]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (27_000, 1 + 1 + 5)
    assert receipts(installation) == (before[0] + 27_000, before[1] + 1 + 1 + 5)


def test_claude_code_runs_two_commands_and_answers(installation: Installation, tmp_path: Path) -> None:
    commands = [
        ("Bash", {"command": "echo first", "description": "Say first"}),
        ("Bash", {"command": "echo second", "description": "Say second"}),
    ]
    agent(installation, tmp_path, commands, prompt_tokens=20_000)
    before = receipts(installation)
    folder = programs.node_packages("agents")
    lines = run(
        [
            *(programs.NODE, folder / "node_modules" / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"),
            *("-p", "Run the two commands.", "--output-format", "json", "--allowedTools", "Bash"),
        ],
        tmp_path,
        ANTHROPIC_BASE_URL=installation.url,
        ANTHROPIC_AUTH_TOKEN=installation.keys["live"],
        ANTHROPIC_MODEL="coding-agent",
        ANTHROPIC_DEFAULT_HAIKU_MODEL="coding-agent",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    result = json.loads(lines[-1])
    assert (result["is_error"], result["num_turns"], result["result"].strip()) == (False, 3, TEXT)
    assert tool_results(installation, tmp_path.name) == ["first", "second"]
    usage = result["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (60_000, 1 + 1 + 5)
    assert receipts(installation) == (before[0] + 60_000, before[1] + 1 + 1 + 5)


def program(installation: Installation, name: str, folder: Path = programs.AGENTS_BIN) -> dict[str, Any]:
    """Return what the program of that name in agents/programs.py got."""
    script = programs.CLIENTS / "agents" / "programs.py"
    return programs.result(installation, [folder / "python", "-W", "ignore", script, name])


def test_openai_agents(installation: Installation) -> None:
    got = program(installation, "openai_agents")
    assert (got["calls"], got["streamed"]) == (2, got["text"])
    receipts = [installation.receipt(generation_id)["usage"] for generation_id in got["ids"]]
    assert got["tokens"] == [
        sum(usage[kind] for usage in receipts) for kind in ("prompt_tokens", "completion_tokens")
    ]


def test_inspect_ai(installation: Installation) -> None:
    got = program(installation, "inspect_ai", programs.INSPECT_BIN)
    assert (got["calls"], got["tokens"][1]) == (["weather"], 6)
    assert got["text"]


def test_langchain_with_responses_and_embeddings(installation: Installation) -> None:
    got = program(installation, "langchain")
    assert (got["calls"], got["vectors"], got["is_repeatable"]) == (["weather"], [1536, 1536], True)
    assert got["streamed"] == got["text"] != ""


def test_llama_index(installation: Installation) -> None:
    got = program(installation, "llama_index")
    assert (got["vector"], got["streamed"]) == (1536, got["text"])


def test_anthropic(installation: Installation) -> None:
    got = program(installation, "anthropic")
    assert (got["calls"], got["stop_reasons"]) == (["weather"], ["tool_use", "end_turn"])
    usage = installation.receipt(got["id"])["usage"]
    assert got["tokens"] == [usage["prompt_tokens"], usage["completion_tokens"]]
    assert got["counted"] > 0


def test_guidellm_measures_without_an_error(installation: Installation, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello [sandbox tokens=6]"}\n' * 4)
    report = tmp_path / "report.json"
    backend = f"kind=openai_http,target={installation.url},model=sandbox,api_key={installation.keys['live']}"
    run(
        [
            programs.AGENTS_BIN / "guidellm",
            *("run", "--backend", backend, "--profile", "kind=synchronous"),
            *("--data", f"kind=json_file,path={prompts}", "--output", f"kind=json,path={report}"),
            *("--constraint", "kind=max_requests,count=4", "--disable-console"),
        ],
        tmp_path,
        HF_HUB_OFFLINE="1",
    )
    totals = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (4, 0)
