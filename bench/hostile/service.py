"""The service under attack: this checkout's or another's, with keys for honest clients and for attackers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.children import Child, ChildError, free_port, running
from bench.hostile.raw_client import Keys
from bench.hostile.upstream import BEHAVIOURS
from bench.targets import own_environment, wait_until_served

ATTACKERS = 20
"""The number of organizations that have keys for attackers."""
HONEST_MODELS = ("tok3-d0",)
ATTACKERS_MODELS = ("tok64-d0", "tok1000-d20", "tok8000-d0")
SANDBOX_MODELS = ("sandbox", "sandbox-echo", "sandbox-tool-call", "sandbox-parallel-tool-calls")
EMBEDDING_MODEL = "sandbox-embedding"
MODEL = """\
[[models]]
id = "{model}"
context_window = 100000000
max_output_tokens = 100000
price = {{ input_per_mtok = "1.00", output_per_mtok = "2.00" }}
deployments = [{{ {deployment} }}]
{more}"""
SANDBOX = 'engine = "sandbox"'
REMOTE = 'engine = "openai_compatible", base_url = "http://127.0.0.1:{port}/v1", upstream_model = "{model}"'
SET_UP = """
import json, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "chatapi.settings"
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("loadcatalog", sys.argv[1], verbosity=0, stdout=sys.stderr)
from accounts.keys import create_key, get_or_create_project
from accounts.models import RateLimit
honest = create_key(get_or_create_project("Honest", "default"), name="honest")[1]
keys = []
for number in range(int(sys.argv[2])):
    project = get_or_create_project(f"Attacker {number}", "default")
    limited, test_over_limit = create_key(project, name="limited", is_test=True)
    RateLimit.objects.create(api_key=limited, requests_per_minute=1)
    test = create_key(project, name="test", is_test=True)[1]
    live = create_key(project, name="live")[1]
    keys.append({"test": test, "test_over_limit": test_over_limit, "live": live})
print(json.dumps({"honest": honest, "attackers": keys}))
"""


@dataclass(frozen=True)
class Ports:
    """The ports of the two upstreams."""

    upstream: int
    hostile_upstream: int


@dataclass(frozen=True)
class Prepared:
    """A state folder with a catalog and keys; nothing runs."""

    root: Path
    state: Path
    honest_key: str
    keys_file: Path


@dataclass(frozen=True)
class Service:
    """A running service."""

    child: Child
    port: int


def prepare(root: Path, folder: Path, ports: Ports, honest_model: str) -> Prepared:
    """Make the state folder with the code of the checkout at `root`; raises ChildError."""
    state = folder / "state"
    state.mkdir(parents=True)
    catalog = folder / "catalog.toml"
    catalog.write_text(catalog_text(ports, honest_model))
    command = [python_of(root), "-c", SET_UP, str(catalog), str(ATTACKERS)]
    done = subprocess.run(
        command,
        cwd=root,
        env=own_environment(state),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise ChildError(f"the service in {root} can't be set up:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    keys_file = folder / "keys.json"
    keys_file.write_bytes(msgspec.json.encode(msgspec.convert(found["attackers"], list[Keys])))
    return Prepared(root, state, found["honest"], keys_file)


def catalog_text(ports: Ports, honest_model: str) -> str:
    """Return a catalog with models of the scripted upstream, of the misbehaving one, and of the sandbox."""
    deployments = {
        **{
            model: REMOTE.format(port=ports.upstream, model=model)
            for model in (honest_model, *HONEST_MODELS, *ATTACKERS_MODELS)
        },
        **{model: REMOTE.format(port=ports.hostile_upstream, model=model) for model in BEHAVIOURS},
        **dict.fromkeys((*SANDBOX_MODELS, EMBEDDING_MODEL), SANDBOX),
    }
    more = {EMBEDDING_MODEL: 'kind = "embeddings"\n'}
    return "\n".join(
        MODEL.format(model=model, deployment=deployment, more=more.get(model, ""))
        for model, deployment in deployments.items()
    )


@contextmanager
def served(prepared: Prepared, state: Path, folder: Path) -> Iterator[Service]:
    """Run `serve` with this state folder until the end of the block."""
    port = free_port()
    command = [python_of(prepared.root), "manage.py", "serve", "--port", str(port)]
    with running("chatapi", command, folder, own_environment(state), prepared.root) as child:
        wait_until_served(child, port, state)
        yield Service(child, port)


def python_of(root: Path) -> str:
    """Return the checkout's own interpreter, or this one."""
    own = root / ".venv" / "bin" / "python"
    return os.fspath(own) if own.exists() else sys.executable
