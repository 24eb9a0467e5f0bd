"""docs/operations.md, "Several machines": PostgreSQL, Redis and nginx are here, chatapi is on two machines,
which are network namespaces with their own addresses.
"""

from functools import partial
from pathlib import Path

from by_hand.clients import load, sign_in, stream
from by_hand.documents import OPERATIONS
from by_hand.machine import PASSWORD, append, expect, replace_once, run, wait_for
from by_hand.processes import SETTINGS, is_ready, run_with_settings

FIRST = "10.0.0.1"
MACHINES = {"10.0.0.2": ("web1", "worker1", "reaper"), "10.0.0.3": ("web2", "worker2")}
REDIS = Path("/etc/redis/redis.conf")
NGINX_FILE = Path("/etc/nginx/conf.d/chatapi.conf")


def move_to_several_machines() -> None:
    """Give the servers an address in a network, and move the processes to its other two machines."""
    run("systemctl stop 'chatapi@*'")
    connect_machines()
    listen()
    settings = SETTINGS.read_text().replace("127.0.0.1", FIRST)
    expect("CHATAPI_TRUSTED_PROXIES=10.0.0.1\n", settings)
    url = OPERATIONS.quoted("redis://:PASSWORD@10.0.0.1:6379/0").replace("PASSWORD", PASSWORD)
    SETTINGS.write_text(replace_once(settings, f"redis://{FIRST}:6379/0", url))
    options = OPERATIONS.quoted("OPTIONS=--only web --host 10.0.0.2 --port 8001")
    upstream = NGINX_FILE.read_text()
    for number, (address, processes) in enumerate(MACHINES.items(), 1):
        Path(f"/etc/chatapi/web{number}").write_text(options.replace("10.0.0.2", address) + "\n")
        upstream = replace_once(upstream, f"127.0.0.1:800{number}", f"{address}:8001")
        for name in processes:
            folder = Path(f"/etc/systemd/system/chatapi@{name}.service.d")
            folder.mkdir()
            (folder / "machine.conf").write_text(f"[Service]\nNetworkNamespacePath=/run/netns/m{address}\n")
    NGINX_FILE.write_text(upstream)
    names = " ".join(f"chatapi@{name}" for processes in MACHINES.values() for name in processes)
    run(f"systemctl daemon-reload && systemctl restart nginx && systemctl start {names}")
    wait_for(lambda: all(is_ready(8001, address) for address in MACHINES), "both web processes to be ready")
    run(f"systemctl is-active {names}")
    stream()
    sign_in()
    command = OPERATIONS.block("manage.py createkey").splitlines()[1]
    said = run_with_settings(f"ip netns exec m10.0.0.2 {command}")
    expect(OPERATIONS.quoted("0 wrong, 0 warnings"), said.splitlines()[-1])
    with load():
        for number, address in enumerate(MACHINES, 1):
            run(f"systemctl restart chatapi@web{number}")
            wait_for(partial(is_ready, 8001, address), f"the web process at {address}")


def connect_machines() -> None:
    """Make two machines beside this one, in a network."""
    run("apt-get install iproute2", online=True)
    run(f"ip link add office type bridge && ip address add {FIRST}/24 dev office && ip link set office up")
    for address in MACHINES:
        cable = f"c{address}"
        inside = f"ip -netns m{address}"
        run(
            f"ip netns add m{address} && ip link add {cable} type veth peer name eth0 netns m{address} && "
            f"ip link set {cable} master office up && {inside} address add {address}/24 dev eth0 && "
            f"{inside} link set eth0 up && {inside} link set lo up"
        )


def listen() -> None:
    """Let PostgreSQL and Redis listen on this machine's address."""
    folder = Path("/etc/postgresql/15/main")
    append(folder / "postgresql.conf", OPERATIONS.quoted("listen_addresses = 'localhost,10.0.0.1'") + "\n")
    append(folder / "pg_hba.conf", OPERATIONS.quoted("host chatapi chatapi 10.0.0.0/24 scram-sha-256") + "\n")
    run(OPERATIONS.quoted("systemctl restart postgresql"))
    password = OPERATIONS.quoted("requirepass PASSWORD").replace("PASSWORD", PASSWORD)
    append(REDIS, f"{OPERATIONS.quoted('bind 127.0.0.1 10.0.0.1')}\n{password}\n")
    run(OPERATIONS.quoted("systemctl restart redis-server"))
