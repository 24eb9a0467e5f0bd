"""docs/operations.md, "Sentinel" and "Several servers of streams"."""

import json
import re
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from by_hand.authority import CERTIFICATE, make_server_certificate
from by_hand.clients import KEY, connect, load, stream, streams
from by_hand.documents import OPERATIONS
from by_hand.machine import expect, replace_once, run, wait_for
from by_hand.processes import SETTINGS, change_settings, doctor, restart_webs, restart_workers


def start_redis_server(name: str, lines: str) -> None:
    """Start another server: the main server's file, with these lines at its end."""
    text = Path("/etc/redis/redis.conf").read_text()
    for written in ("/run/redis/redis-server.pid", "/var/log/redis/redis-server.log"):
        text = replace_once(text, written, written.replace("redis-server", f"redis-{name}"))
    file = Path(f"/etc/redis/redis-{name}.conf")
    file.write_text(text.replace("/run/redis/", f"/run/redis-{name}/") + lines)
    run(f"chown redis: {file} && systemctl start redis-server@{name}")


def set_up_sentinels() -> None:
    """Replicate Redis, let three sentinels watch it, and kill the primary while requests stream."""
    run(
        f"{OPERATIONS.quoted('apt-get install redis-sentinel')} && systemctl disable --now redis-sentinel",
        online=True,
    )
    start_redis_server("second", "port 6380\nreplicaof 127.0.0.1 6379\n")
    for port in (26379, 26380, 26381):
        file = Path(f"/etc/redis/sentinel-{port}.conf")
        text = (
            OPERATIONS.block("sentinel monitor NAME")
            .replace("NAME", "chatapi")
            .replace("10.0.0.1", "127.0.0.1")
        )
        file.write_text(re.sub(r"^sentinel auth-pass.*\n", "", text, flags=re.M) + f"port {port}\n")
        run(f"chown redis: {file} && systemctl start redis-sentinel@{port}")
    url = OPERATIONS.block("REDIS_URL=redis+sentinel://").strip().replace("NAME", "chatapi")
    url = re.sub(r":PASSWORD@.*?/", "127.0.0.1:26379,127.0.0.1:26380,127.0.0.1:26381/", url)
    SETTINGS.write_text(re.sub(r"^REDIS_URL=.*$", url, SETTINGS.read_text(), flags=re.M))
    restart_workers()
    restart_webs()
    doctor()
    run("systemctl kill --signal=KILL redis-server && systemctl stop redis-server")
    wait_for(streams, "requests to stream again", 15)
    doctor()


def add_stream_servers() -> None:
    """Add two servers of streams to that of REDIS_URL, lose one, and take it away; all under load."""
    before = SETTINGS.read_text()
    lines = OPERATIONS.block("CHATAPI_STREAMS_URL=redis://")
    [first] = re.findall(r"(?m)^REDIS_URL=(.+)$", before)
    lines = re.sub("redis://(broker|streams-0):6379/0", first, lines)
    [urls] = re.findall(r"(?m)^CHATAPI_STREAMS_URL=(.+)$", lines)
    _, second, third = urls.split(",")
    start_servers_of(second, third)
    two = replace_once(lines, urls, f"{first},{second}")
    # A short time, because "To take one away" waits for it.
    change_settings(f"{two}CHATAPI_STREAM_TTL_MS=10000\n")
    with load():
        restart_workers()
        restart_webs()
    expect_servers(2)
    change_settings(lines)
    with load():
        restart_workers()
        restart_webs()
    expect_servers(3)
    run("systemctl kill --signal=KILL redis-server@third && systemctl stop redis-server@third")
    wait_for(lambda: servers_that_answer() == [True, True, False], "the probe to name the lost server", 10)
    for _ in range(6):
        stream()
    run("systemctl start redis-server@third")
    wait_for(lambda: servers_that_answer() == [True] * 3, "the lost server to come back", 30)
    wait_for(lambda: server_of_next_generation() == 2, "a generation on the server that came back", 30)
    doctor()
    change_settings(two)
    with load():
        restart_webs()
        time.sleep(10)  # CHATAPI_STREAM_TTL_MS; nothing shows its end
        restart_workers()
    expect_servers(2)
    SETTINGS.write_text(before)
    with load():
        restart_webs()
        time.sleep(10)
        restart_workers()
    run("systemctl stop redis-server@second redis-server@third")


def start_servers_of(second: str, third: str) -> None:
    """Start the servers of two URLs: with TLS, and with a socket in the file system."""
    certificate, key = make_server_certificate(str(urlsplit(second).hostname))
    run(f"install -o redis -m 600 {key} /etc/redis/second.key")
    start_redis_server(
        "second",
        f"port 0\ntls-port {urlsplit(second).port}\ntls-cert-file {certificate}\n"
        f"tls-key-file /etc/redis/second.key\ntls-ca-cert-file {CERTIFICATE}\ntls-auth-clients no\n",
    )
    # Redis may not make a file in /run itself.
    socket = "/run/redis-third/redis.sock"
    permissions = OPERATIONS.quoted("unixsocketperm 770")
    start_redis_server("third", f"port 0\nunixsocket {socket}\n{permissions}\n")
    run(f"ln -s {socket} {urlsplit(third).path}")
    folder = Path("/etc/systemd/system/chatapi@.service.d")
    folder.mkdir()
    group = OPERATIONS.quoted("SupplementaryGroups=redis")
    (folder / "redis.conf").write_text(f"[Service]\n{group}\n")
    run("systemctl daemon-reload")


def expect_servers(number: int) -> None:
    """Exit unless all servers answer, get generations, and are right in the eyes of doctor."""
    expect(str([True] * number), str(servers_that_answer()))
    seen: set[int] = set()

    def all_are_seen() -> bool:
        seen.add(server_of_next_generation())
        return len(seen) == number

    wait_for(all_are_seen, f"generations on {number} servers")
    doctor()


def servers_that_answer() -> list[bool]:
    """Return which servers of streams answer, by /readyz."""
    with urllib.request.urlopen("http://127.0.0.1:8001/readyz", timeout=5) as answer:
        servers: list[bool] = json.load(answer)["stream_servers"]
    return servers


def server_of_next_generation() -> int:
    """Return the number of the server in a new generation's id."""
    connection = connect()
    body = {"model": "sandbox", "messages": [{"role": "user", "content": "Hello!"}]}
    headers = {"Authorization": f"Bearer {KEY.read_text()}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    return int(str(answer.headers["x-generation-id"])[-1], 16)
