"""Sets the service up by hand on this machine, which `.ci/by_hand` has made, and checks each step of
docs/operations.md, docs/metrics.md and docs/backup.md.

python3 .ci/by_hand.py PREVIOUS    PREVIOUS is the commit to go back to, and to upgrade from

Commands and files are the code blocks and the quoted commands of the documents, so a wrong line in a document
fails here. Only the reader's choices are filled in: passwords, addresses, the certificate.
"""

import http.cookiejar
import json
import re
import secrets
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

DOCUMENTS = Path(__file__).resolve().parent.parent / "docs"
COPY = "/root/chatapi.git"
PROJECT = Path("/srv/chatapi")
SETTINGS = Path("/etc/chatapi/env")
KEY = Path("/root/key")
CERTIFICATE = Path("/etc/ssl/chat.example.com.pem")
HOST = "chat.example.com"
PROCESSES = ("worker1", "worker2", "reaper", "web1", "web2")
READY_WITHIN_S = 60
TOKENS = 20
"""Of each answer."""
PASSWORD = secrets.token_hex(12)
"""Of the role, and of the operator."""
DIRECT = f"postgres://chatapi:{PASSWORD}@127.0.0.1:5432/"
"""PostgreSQL itself, also when the processes use PgBouncer."""


class Document:
    """A file of docs/: its code blocks, and the commands that its sentences quote."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (DOCUMENTS / name).read_text()
        rest = re.sub(r"^```.*?^```$", "", self.text, flags=re.M | re.S)
        indented = re.findall(r"(?:^    .*\n|^\n(?=    ))+", rest, re.M)
        self.blocks = [textwrap.dedent(block).strip("\n") + "\n" for block in indented]
        self.blocks += re.findall(r"^```[^\n]*\n(.*?)^```$", self.text, re.M | re.S)

    def block(self, line: str) -> str:
        """Return the code block that contains the text; exit unless there is exactly one."""
        found = [block for block in self.blocks if line in block]
        if len(found) != 1:
            fail(f"docs/{self.name} has {len(found)} code blocks with: {line}")
        return found[0]

    def quoted(self, command: str) -> str:
        """Return the command; exit unless a sentence of the document quotes it."""
        if f"`{command}`" not in re.sub(r"\s+", " ", self.text):
            fail(f"docs/{self.name} does not quote: {command}")
        return command


OPERATIONS, METRICS, BACKUP = (Document(f"{name}.md") for name in ("operations", "metrics", "backup"))


def main() -> None:
    """Follow the documents; exit with status 1 at the first step that fails."""
    began_at = time.monotonic()
    steps: dict[str, Callable[[], None]] = {
        "packages, the project, the role and its database": install,
        "Redis refuses when it is full, and writes no files": set_up_redis,
        "settings, tables, an operator, the sandbox's catalog": set_up_tables,
        "two workers, a reaper and two web processes": start_processes,
        "nginx with TLS": set_up_nginx,
        "a key": make_key,
        "doctor finds nothing": lambda: expect("ok", doctor()),
        "a stream through https": stream,
        "an operator signs in through https": sign_in,
        "the journal says why a process does not start": read_the_journal,
        "Prometheus scrapes all processes and evaluates all rules": set_up_prometheus,
        "PgBouncer under load, with all time limits in force": set_up_pgbouncer,
        "back to the release before under load": go_back,
        "an upgrade under load": upgrade,
        "backup, and restore into a new database": restore,
        "a replica for reports": set_up_replica,
        "three sentinels, and a primary that dies": set_up_sentinels,
    }
    for name, step in steps.items():
        step_began_at = time.monotonic()
        step()
        print(f"ok  {name}  {time.monotonic() - step_began_at:.0f} s", flush=True)
    print(f"All right, {time.monotonic() - began_at:.0f} s")


# ---- docs/operations.md: by hand, on Debian


def install() -> None:
    """Install packages and the project, and create the role and the database."""
    Path("/etc/apt/apt.conf.d/yes").write_text('APT::Get::Assume-Yes "true";\n')
    commands = OPERATIONS.block("git clone YOUR-COPY").replace("YOUR-COPY", COPY)
    # createuser asks twice for the password.
    run(commands, folder="/root", answers=f"{PASSWORD}\n{PASSWORD}\n", online=True)


def set_up_redis() -> None:
    """Append the settings of Redis to its file, and check that they are in effect."""
    append("/etc/redis/redis.conf", OPERATIONS.block("maxmemory-policy"))
    run(OPERATIONS.quoted("systemctl restart redis-server"))
    expect("noeviction", run("redis-cli config get maxmemory-policy"))


def set_up_tables() -> None:
    """Write the settings; make the tables, an operator and the catalog."""
    run(OPERATIONS.quoted("install -d -m 700 /etc/chatapi"))
    settings = OPERATIONS.block("CHATAPI_KEY_PEPPER=").replace("PASSWORD", PASSWORD)
    random = OPERATIONS.quoted("openssl rand -hex 32")
    settings = re.sub("…", lambda _: run(random).strip(), settings)
    SETTINGS.write_text(settings)
    commands = OPERATIONS.block("manage.py createsuperuser\n")
    # Without a terminal, Django takes the answers from the environment.
    operator = f"DJANGO_SUPERUSER_USERNAME=op DJANGO_SUPERUSER_EMAIL= DJANGO_SUPERUSER_PASSWORD={PASSWORD}"
    commands = replace_once(commands, "createsuperuser", "createsuperuser --noinput")
    run_with_settings(f"export {operator}\n{commands}")


def start_processes() -> None:
    """Write the unit and the options of each process; start all."""
    Path("/etc/systemd/system/chatapi@.service").write_text(OPERATIONS.block("ExecStart="))
    run(OPERATIONS.block("systemctl enable --now chatapi@"))
    wait_for_processes()


def set_up_nginx() -> None:
    """Copy the example to nginx's folder, with the addresses here and a certificate."""
    run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={HOST} "
        f"-addext subjectAltName=DNS:{HOST} -keyout {CERTIFICATE.with_suffix('.key')} -out {CERTIFICATE}"
    )
    example = (PROJECT / "deploy" / "nginx" / "chatapi.conf").read_text()
    for written, ours in {"10.0.0.1:8000": "127.0.0.1:8001", "10.0.0.2:8000": "127.0.0.1:8002"}.items():
        example = replace_once(example, written, OPERATIONS.quoted(ours))
    Path("/etc/nginx/conf.d/chatapi.conf").write_text(example)
    main_file = Path("/etc/nginx/nginx.conf")
    before_events, in_events = OPERATIONS.block("worker_connections").splitlines()
    text = replace_once(main_file.read_text(), "\nevents {", f"\n{before_events}\nevents {{")
    main_file.write_text(replace_once(text, "worker_connections 768;", in_events))
    run(OPERATIONS.quoted("systemctl restart nginx"))


def make_key() -> None:
    """Make a key by the document's command, and store it for the other steps."""
    command = OPERATIONS.block("manage.py createkey").splitlines()[0]
    [key] = re.findall(r"ck_live_\w+", run_with_settings(command))
    KEY.write_text(key)


def doctor() -> str:
    """Return what doctor says; exit unless it ends as the document says."""
    command = OPERATIONS.block("manage.py createkey").splitlines()[1]
    said = run_with_settings(command)
    if OPERATIONS.quoted("0 wrong, 0 warnings") not in said.splitlines()[-1]:
        fail(said)
    return said


def read_the_journal() -> None:
    """Start a process whose port is taken, and check that the document's command shows the reason."""
    Path("/etc/chatapi/web3").write_text("OPTIONS=--only web --port 8001\n")
    run("systemctl start chatapi@web3")
    restarts = "systemctl show --value --property NRestarts chatapi@web3"
    wait_for(lambda: int(run(restarts)) > 0, "systemd to start the process again")
    command = OPERATIONS.quoted("journalctl -t python -u chatapi@web1").replace("web1", "web3")
    expect("port 8001 on 127.0.0.1 is in use", run(command).splitlines()[-1])
    run("systemctl stop chatapi@web3")


def set_up_pgbouncer() -> None:
    """Put PgBouncer between the processes and PostgreSQL."""
    run(OPERATIONS.quoted("apt-get install pgbouncer"), online=True)
    append("/etc/pgbouncer/pgbouncer.ini", OPERATIONS.block("pool_mode = transaction"))
    users = Path("/etc/pgbouncer/userlist.txt")
    users.write_text(OPERATIONS.quoted('"chatapi" "PASSWORD"').replace("PASSWORD", PASSWORD) + "\n")
    run(f"chown postgres {users}")
    add_to_pgbouncer("chatapi")
    set_limits("chatapi")
    console = OPERATIONS.quoted("runuser -u postgres -- psql -p 6432 -U pgbouncer pgbouncer -c RECONNECT")
    run(console)
    SETTINGS.write_text(replace_once(SETTINGS.read_text(), ":5432/", ":6432/"))
    with load():
        restart_workers()
        restart_webs()
    expect("chatapi", run(console.replace("RECONNECT", "'SHOW SERVERS'")))
    doctor()


def add_to_pgbouncer(database: str) -> None:
    """Let PgBouncer serve a database."""
    file = Path("/etc/pgbouncer/pgbouncer.ini")
    line = re.sub("^chatapi", database, OPERATIONS.block("chatapi = host=127.0.0.1 port=5432"))
    file.write_text(replace_once(file.read_text(), "\n[databases]\n", f"\n[databases]\n{line}"))
    run(OPERATIONS.quoted("systemctl restart pgbouncer"))


def set_limits(database: str) -> None:
    """Give the role its time limits in a database."""
    commands = OPERATIONS.block("ALTER ROLE chatapi")
    commands = commands.replace("IN DATABASE chatapi", f"IN DATABASE {database}")
    psql = OPERATIONS.quoted("runuser -u postgres -- psql")
    run(f"{psql} --set ON_ERROR_STOP=1", answers=commands)


# ---- docs/metrics.md


def set_up_prometheus() -> None:
    """Let Debian's Prometheus scrape a web process and evaluate the rules."""
    run(METRICS.quoted("apt-get install prometheus"), online=True)
    run_with_settings(METRICS.block("install -m 640 -g prometheus"))
    copy = METRICS.quoted("/etc/prometheus/chatapi-alerts.yml")
    run(f"cp deploy/prometheus/alerts.yml {copy}")
    file = Path("/etc/prometheus/prometheus.yml")
    text = file.read_text()
    for block in (METRICS.block("scrape_configs:"), METRICS.block("rule_files:")):
        # Debian's file has the first line.
        text = replace_once(text, block.splitlines()[0] + "\n", block)
    file.write_text(replace_once(text, "chatapi.internal:8000", METRICS.quoted("127.0.0.1:8001")))
    run(METRICS.quoted("systemctl restart prometheus"))
    wait_for(is_scraped, "Prometheus to scrape all processes", 90)
    wait_for(rules_are_right, "Prometheus to evaluate the rules", 60)


def is_scraped() -> bool:
    """Return whether the target is up and all five processes have numbers."""
    stream()  # a web process has none before its first request
    targets = prometheus("targets").get("activeTargets", [])
    if [each["health"] for each in targets if each["labels"]["job"] == "chatapi"] != ["up"]:
        return False
    rows = prometheus("query", query="count by (role) (chatapi_process_resident_bytes)")["result"]
    seen = {each["metric"]["role"]: each["value"][1] for each in rows}
    return seen == {"web": "2", "worker": "2", "reaper": "1"}


def rules_are_right() -> bool:
    """Return whether all rules are evaluated; exit if one fires."""
    rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    if firing:
        fail(f"these alerts fire: {firing}")
    return len(rules) > 10 and {rule["health"] for rule in rules} == {"ok"}


def prometheus(path: str, **parameters: str) -> Any:
    """Return an answer of Prometheus' API; empty while it does not answer."""
    try:
        url = f"http://127.0.0.1:9090/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return {}


# ---- requests


def stream() -> None:
    """Stream an answer through nginx; exit unless nginx passes the tokens on at once."""
    connection = connect()
    pieces = stream_on(connection)
    connection.close()
    if pieces < TOKENS / 2:
        fail(f"{TOKENS} tokens came in {pieces} pieces: nginx has buffered them")


def connect() -> HTTPSConnection:
    """Return a connection to nginx that verifies its certificate."""
    return HTTPSConnection(HOST, timeout=60, context=ssl.create_default_context(cafile=str(CERTIFICATE)))


def stream_on(connection: HTTPSConnection) -> int:
    """Return the number of pieces of an answer; raises `ValueError` unless the answer is complete."""
    prompt = {"role": "user", "content": f"[sandbox tokens={TOKENS} delay_ms=40]"}
    body = {"model": "sandbox", "stream": True, "messages": [prompt]}
    headers = {"Authorization": f"Bearer {KEY.read_text()}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    pieces = []
    while piece := answer.read1():
        pieces.append(piece)
    text = b"".join(pieces).decode()
    if answer.status != 200 or not text.rstrip().endswith("data: [DONE]") or '"error"' in text:
        raise ValueError(f"{answer.status} {text[-300:]}")
    return len(pieces)


@contextmanager
def load() -> Iterator[None]:
    """Stream all the time on eight connections; exit if one request fails."""
    stop, sent, failures = threading.Event(), [0], list[str]()

    def send() -> None:
        connection = connect()
        while not stop.is_set():
            try:
                stream_on(connection)
            except (OSError, HTTPException, ValueError) as problem:
                failures.append(f"{type(problem).__name__} {problem}")
                connection.close()
            sent[0] += 1
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures or sent[0] < 20:
        fail(f"{len(failures)} of {sent[0]} requests failed: {failures[:3]}")
    print(f"    {sent[0]} requests", flush=True)


def sign_in() -> None:
    """Sign in as the operator, and check that the cookies are for https only."""
    _, cookies = signed_in()
    if not {"sessionid", "csrftoken"} <= {each.name for each in cookies if each.secure}:
        fail(f"cookies without Secure: {[each.name for each in cookies]}")


def signed_in() -> tuple[urllib.request.OpenerDirector, http.cookiejar.CookieJar]:
    """Return a browser in which the operator has signed in, and its cookies."""
    cookies = http.cookiejar.CookieJar()
    context = ssl.create_default_context(cafile=str(CERTIFICATE))
    browser = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(cookies), urllib.request.HTTPSHandler(context=context)
    )
    # nginx redirects from http to https.
    page = browser.open(f"http://{HOST}/console/sign-in?next=/admin/", timeout=30)
    expect(f"https://{HOST}/console/sign-in", page.url)
    [token] = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.read().decode()))
    form = {"csrfmiddlewaretoken": token, "username": "op", "password": PASSWORD, "next": "/admin/"}
    sent = urllib.request.Request(page.url, urlencode(form).encode(), {"Referer": page.url})
    expect(f"https://{HOST}/admin/", browser.open(sent, timeout=30).url)
    return browser, cookies


# ---- upgrade and restore


def go_back() -> None:
    """Go back to the release before, in the order of "Going back"."""
    with load():
        run(f"git reset --quiet --hard {sys.argv[1]} && make .venv/.base", online=True)
        restart_webs()
        wait_for(nothing_waits, "the queue to be empty")
        restart_workers()


def nothing_waits() -> bool:
    """Return whether the queue is empty, by the metric that "Going back" names."""
    metric = OPERATIONS.quoted('chatapi_generations_in_flight{state="queued"}')
    ask = 'curl -sf http://127.0.0.1:8001/metrics -H "Authorization: Bearer $CHATAPI_METRICS_TOKEN"'
    return f"\n{metric} 0.0\n" in run_with_settings(ask)


def upgrade() -> None:
    """Upgrade to the newest release, in the order of "Upgrading"."""
    fetch, _, rest = OPERATIONS.block("git pull").partition("\n")
    direct = f"set +a; export DATABASE_URL={DIRECT}chatapi;"
    with load():
        run(fetch, online=True)
        run(replace_once(rest, "set +a;", direct))
        wait_for_processes()
    doctor()


def restart_workers() -> None:
    """Restart workers and reaper by the upgrade's commands."""
    [commands] = re.findall(r"^for each in .* done$", OPERATIONS.block("git pull"), re.M)
    run(commands)


def restart_webs() -> None:
    """Restart one web process after the other by the upgrade's commands."""
    [commands] = re.findall(r"^for web in .*?^done$", OPERATIONS.block("git pull"), re.M | re.S)
    run(commands)
    wait_for_processes()


def restore() -> None:
    """Back the service up, stop it, and restore it into a new database behind PgBouncer."""
    run("mkdir /root/backup")
    folder = "export BACKUP=/root/backup\n"
    direct = f"{folder}export DATABASE_URL={DIRECT}chatapi\n"
    run_with_settings(direct + BACKUP.block("pg_dump --format=custom --file="))
    stream()  # this one is not in the backup
    run(BACKUP.quoted("systemctl stop 'chatapi@*'"))
    run(BACKUP.quoted("redis-cli flushall"))
    create = BACKUP.quoted("runuser -u postgres -- createdb --owner=chatapi NAME")
    run(create.replace("NAME", "restored"))
    direct = direct.replace("5432/chatapi", "5432/restored")
    run_with_settings(direct + BACKUP.block("pg_restore --no-owner --exit-on-error --dbname="))
    set_limits("restored")
    add_to_pgbouncer("restored")
    SETTINGS.write_text(replace_once(SETTINGS.read_text(), ":6432/chatapi", ":6432/restored"))
    run(BACKUP.quoted("systemctl start chatapi@reaper"))
    compare = BACKUP.block(".venv/bin/python manage.py verifyledger --seal")
    expect(", no difference.", run_with_settings(folder + compare))
    run(BACKUP.quoted("systemctl start chatapi@worker1 chatapi@worker2 chatapi@web1 chatapi@web2"))
    wait_for_processes()
    stream()
    doctor()


# ---- docs/operations.md: a replica, and sentinels


def set_up_replica() -> None:
    """Make a streaming replica on this machine, and check that the operator's Overview reads it."""
    role, access = (
        re.split(r" +(?:--|#) ", line)[0] for line in OPERATIONS.block("REPLICATION").splitlines()
    )
    psql = OPERATIONS.quoted("runuser -u postgres -- psql")
    append("/etc/postgresql/15/main/pg_hba.conf", access.replace("REPLICAS-ADDRESS", "127.0.0.1") + "\n")
    reload = OPERATIONS.quoted("SELECT pg_reload_conf()")
    run(f"{psql} --set ON_ERROR_STOP=1", answers=f"{role.replace('…', PASSWORD)}\n{reload};\n")
    folder = "/var/lib/postgresql/15/replica"
    run(f"pg_createcluster 15 replica --port 5433 && rm --recursive {folder} && mkdir {folder}")
    run(f"chown postgres: {folder} && chmod 700 {folder}")
    copy = OPERATIONS.block("pg_basebackup").replace("PRIMARY", "127.0.0.1").replace("FOLDER", folder)
    run(f"export PGPASSWORD={PASSWORD}; cd /; runuser -u postgres -- {copy}")
    run("systemctl start postgresql@15-replica")
    name = OPERATIONS.quoted("CHATAPI_REPLICA_DATABASE_URL")
    append(SETTINGS, f"{name}={DIRECT.replace('5432', '5433')}restored\n")
    restart_webs()
    expect("ok       replica       127.0.0.1 is 0.0 s behind.", doctor())
    browser, cookies = signed_in()
    # The operator's sign-in was a change, so their pages read the primary for a minute.
    cookies.clear(HOST, "/", "chatapi_wrote")
    browser.open(f"https://{HOST}/admin/", timeout=30)
    reads = "SELECT sum(seq_scan + idx_scan) > 0 FROM pg_stat_user_tables WHERE relname = 'usage_hourlyusage'"
    wait_for(
        lambda: "t" in run(f'{psql} -p 5433 -d restored -tc "{reads}"'), "the Overview to read the replica"
    )


def set_up_sentinels() -> None:
    """Replicate Redis, let three sentinels watch it, and kill the primary while requests stream."""
    run(
        f"{OPERATIONS.quoted('apt-get install redis-sentinel')} && systemctl disable --now redis-sentinel",
        online=True,
    )
    main_file = Path("/etc/redis/redis.conf").read_text()
    second = replace_once(main_file, "\nport 6379\n", "\nport 6380\nreplicaof 127.0.0.1 6379\n")
    for written in ("/run/redis/redis-server.pid", "/var/log/redis/redis-server.log"):
        second = replace_once(second, written, written.replace("server", "second"))
    Path("/etc/redis/redis-second.conf").write_text(second.replace("/run/redis/", "/run/redis-second/"))
    run("chown redis: /etc/redis/redis-second.conf && systemctl start redis-server@second")
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


def streams() -> bool:
    """Return whether a request streams a whole answer."""
    try:
        stream()
    except (OSError, HTTPException, ValueError):
        return False
    return True


# ---- the machine


def run(command: str, *, folder: str | Path = PROJECT, answers: str = "", online: bool = False) -> str:
    """Return the output of commands in a root shell; exit if one fails. `online`: with the network."""
    words = ["bash", "-euo", "pipefail", "-c", command]
    if online:
        # This machine's own network is loopback only; `.ci/by_hand` has passed its host's as descriptor 9.
        words = ["nsenter", "--net=/proc/self/fd/9", *words]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            input=answers,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600 if online else 120,
            check=False,
            pass_fds=(9,),
            start_new_session=True,  # without a terminal, commands ask on stdin
        )
    except subprocess.TimeoutExpired as late:
        fail(f"{command}\nhas not ended within {late.timeout:.0f} s")
    if done.returncode:
        fail(f"{command}\n{done.stdout}")
    return done.stdout


def run_with_settings(command: str) -> str:
    """Run commands with the settings in the environment, as the document says."""
    return run(OPERATIONS.quoted("set -a; . /etc/chatapi/env; set +a") + "\n" + command)


def wait_for_processes() -> None:
    """Wait until both web processes are ready; exit unless all processes run."""
    wait_for(lambda: is_ready(8001) and is_ready(8002), "both web processes to be ready")
    run("systemctl is-active " + " ".join(f"chatapi@{name}" for name in PROCESSES))


def is_ready(port: int) -> bool:
    """Return whether /readyz of the web process at the port answers 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for(condition: Callable[[], object], what: str, within_s: float = READY_WITHIN_S) -> None:
    """Wait until the condition holds; exit if it does not in time."""
    until = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until:
            fail(f"waited {within_s:.0f} s for {what}\n{run('journalctl --lines 40 --no-pager')}")
        time.sleep(0.2)


def append(path: str | Path, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text)


def replace_once(text: str, written: str, ours: str) -> str:
    """Replace a part of the text; exit unless the part is there exactly once."""
    if text.count(written) != 1:
        fail(f"{text.count(written)} times in the file: {written}")
    return text.replace(written, ours)


def expect(wanted: str, said: str) -> None:
    """Exit unless the text contains `wanted`."""
    if wanted not in said:
        fail(f"expected {wanted!r} in: {said}")


def fail(problem: str) -> NoReturn:
    sys.exit(f"WRONG  {problem}")


if __name__ == "__main__":
    main()
