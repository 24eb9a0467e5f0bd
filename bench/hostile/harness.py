"""One run: a fresh service, honest clients, some quiet seconds, an attack, and its effect on the honest
clients.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from bench.children import PROJECT_FOLDER, ChildError, free_port, mortal, running, wait_until_ready
from bench.hostile.measurement import Attacked, Outcome, Witnessed, failed, outcome
from bench.hostile.memory import Memory
from bench.hostile.registry import Attack
from bench.hostile.service import Ports, Prepared, Service, prepare, served

QUIET_SECONDS = 3.0
TAIL_SECONDS = 3.0
"""The honest streams go on for at least this long after the attack."""
PATIENCE_SECONDS = 45.0
"""An honest stream that ends more than this later than planned counts as broken."""
SAMPLE_SECONDS = 0.5
TOKEN_MS = 20


@dataclass(frozen=True)
class Plan:
    """The options of the command line."""

    root: Path
    seconds: float
    attackers: int
    is_address_shared: bool

    @property
    def honest_model(self) -> str:
        """Return a model whose streams last longer than the attack."""
        return f"tok{round((QUIET_SECONDS + self.seconds + TAIL_SECONDS) * 1000 / TOKEN_MS)}-d{TOKEN_MS}"


class Harness:
    """The upstreams and a prepared state folder, for any number of runs."""

    def __init__(self, plan: Plan, folder: Path, prepared: Prepared, sink_port: int) -> None:
        self.plan, self.folder, self.prepared, self.sink_port = plan, folder, prepared, sink_port

    def run(self, attack: Attack) -> Outcome:
        """Run one attack on a service of its own."""
        named = (attack.name, attack.who, attack.summary)
        state = self.folder / "running"
        shutil.copytree(self.prepared.state, state)
        try:
            with served(self.prepared, state, self.folder) as service:
                return self.attack(attack, service)
        except ChildError as error:
            return failed(named, self.plan.attackers, str(error).splitlines()[0])
        finally:
            shutil.rmtree(state)

    def attack(self, attack: Attack, service: Service) -> Outcome:
        """Start the clients, wait, attack, and read the files that they have written."""
        with self.attacker(attack, service) as attacker, self.witness(service) as witness:
            time.sleep(QUIET_SECONDS)
            memory = Memory(service.child.pid)
            attacked_at = time.perf_counter()
            _write_line(attacker)
            while witness.poll() is None:
                memory.sample()
                _wait(witness, SAMPLE_SECONDS)
            memory.sample()
            service.child.assert_alive()
            attacker.wait(PATIENCE_SECONDS)
        witnessed = msgspec.json.decode(self.result("witness").read_bytes(), type=Witnessed)
        attacked = msgspec.json.decode(self.result("attacker").read_bytes(), type=Attacked)
        named = (attack.name, attack.who, attack.summary)
        return outcome(named, self.plan.attackers, attacked_at, witnessed, attacked, memory.growth)

    def result(self, name: str) -> Path:
        """Return the file to which the process of this name writes its results."""
        return self.folder / f"{name}.json"

    @contextmanager
    def attacker(self, attack: Attack, service: Service) -> Iterator["subprocess.Popen[bytes]"]:
        """Yield the attacker's process, which waits for a line."""
        plan = self.plan
        arguments = [
            "--attack",
            attack.name,
            "--port",
            str(self.sink_port if attack.is_sent_to_sink else service.port),
        ]
        arguments += [
            "--attackers",
            str(plan.attackers),
            "--seconds",
            str(plan.seconds),
            "--keys",
            str(self.prepared.keys_file),
        ]
        arguments += [
            "--output",
            str(self.result("attacker")),
            *(["--shared-address"] if plan.is_address_shared else []),
        ]
        with talking("attacker", ["bench.hostile.attacker", *arguments], self.folder) as process:
            _read_line(process, "ready")
            yield process

    @contextmanager
    def witness(self, service: Service) -> Iterator["subprocess.Popen[bytes]"]:
        """Yield the honest clients' process, once all of its streams have begun."""
        url = f"http://127.0.0.1:{service.port}/opentoken/v1"
        arguments = [url, "--key", self.prepared.honest_key, "--model", self.plan.honest_model]
        arguments += ["--patience-seconds", str(PATIENCE_SECONDS), "--output", str(self.result("witness"))]
        with talking("witness", ["bench.hostile.witness", *arguments], self.folder) as process:
            _read_line(process, "streaming")
            yield process


@contextmanager
def harness(plan: Plan, folder: Path) -> Iterator[Harness]:
    """Start the upstreams and the sink, and prepare the service."""
    ports, sink_port = Ports(free_port(), free_port()), free_port()
    commands = {
        "upstream": ["bench.upstream", "--port", str(ports.upstream)],
        "hostile-upstream": ["bench.hostile.upstream", "--port", str(ports.hostile_upstream)],
        "sink": ["bench.hostile.sink", "--port", str(sink_port)],
    }
    with ExitStack() as stack:
        for name, command in commands.items():
            lasting = [sys.executable, "-m", *command, "--seconds", "36000"]
            child = stack.enter_context(running(name, lasting, folder, os.environ))
            if name == "upstream":
                wait_until_ready(child, ports.upstream, "/v1/models")
        yield Harness(plan, folder, prepare(plan.root, folder, ports, plan.honest_model), sink_port)


@contextmanager
def talking(name: str, arguments: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a module as a process that exchanges lines with this one; kill it at the end of the block."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            mortal([sys.executable, "-m", *arguments]),
            cwd=PROJECT_FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _read_line(process: "subprocess.Popen[bytes]", expected: str) -> None:
    line = _output(process).readline().decode().strip()
    if line != expected:
        raise ChildError(f"a child process wrote {line!r} instead of {expected!r}; its log says why")


def _write_line(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


def _output(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
