"""`manage.py serve`, with real processes: from the first start to a clean end, and what it says when it
can't.
"""

import http.client
import http.cookiejar
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chatapi.serving import embedded_valkey
from tests.chatapi.serve_process import Serve, Start, answers, start
from tests.curl import needs_curl
from tests.installation import free_port

__all__ = ["start"]


@pytest.fixture(scope="module")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start `serve` for the first time, in a folder whose name every URL must quote."""
    serve = Serve(tmp_path_factory.mktemp("state") / "100% of it?", free_port())
    try:
        serve.wait_until_ready()
        yield serve
    finally:
        serve.kill()


@needs_curl
def test_it_prints_a_curl_command_that_works_when_pasted(first_start: Serve) -> None:
    done = first_start.run(["sh", "-c", first_start.snippet("curl ")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("data: {")
    assert done.stdout.rstrip().endswith("data: [DONE]")


def test_it_prints_a_python_snippet_that_works_when_pasted(first_start: Serve) -> None:
    done = first_start.run([sys.executable, "-c", first_start.snippet("from openai")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_it_makes_an_administrator_that_can_log_in(first_start: Serve) -> None:
    cookies = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    url = f"http://127.0.0.1:{first_start.port}/console/sign-in?next=/admin/"
    browser.open(url).close()
    token = next(cookie.value for cookie in cookies if cookie.name == "csrftoken")
    found = re.search(r"user (\w+), password (\S+)", first_start.text)
    assert found
    form = {"username": found[1], "password": found[2], "csrfmiddlewaretoken": token}
    with browser.open(url, urllib.parse.urlencode(form).encode()) as page:
        assert page.url.endswith("/admin/")


def test_the_first_requests_are_charged(first_start: Serve) -> None:
    assert first_start.run([sys.executable, "-c", first_start.snippet("from openai")]).returncode == 0
    request = f"http://127.0.0.1:{first_start.port}/v1/models"
    with urllib.request.urlopen(
        urllib.request.Request(request, headers={"Authorization": f"Bearer {first_start.key}"})
    ) as answer:
        assert b'"sandbox"' in answer.read()
    assert first_start.run([sys.executable, "manage.py", "verifyledger"]).returncode == 0


@pytest.mark.parametrize("role", ["worker", "web", "reaper", "valkey"])
def test_it_starts_again_what_dies(first_start: Serve, role: str) -> None:
    first_start.wait_until(lambda: first_start.child(role) != 0)
    old, said = (
        first_start.child(role),
        first_start.text.count(f"{role} was killed by SIGKILL; it is started again in"),
    )
    first_start.wait_until(lambda: answers(first_start, "/readyz"))
    os.kill(old, signal.SIGKILL)
    first_start.wait_until(lambda: first_start.child(role) not in {0, old})
    assert first_start.text.count(f"{role} was killed by SIGKILL; it is started again in") == said + 1
    first_start.wait_until(lambda: answers(first_start, "/readyz"))
    done = first_start.run([sys.executable, "-c", first_start.snippet("from openai")])
    assert done.returncode == 0, done.stderr


def test_what_it_writes_is_for_nobody_else(first_start: Serve) -> None:
    """The database contains all tenants' rows, and the secrets sign for all of them."""
    written = [first_start.state_dir, *first_start.state_dir.rglob("*")]
    assert {path.name for path in written} >= {"chatapi.sqlite3", "secrets.env"}
    assert [path for path in written if path.stat().st_mode & 0o077] == []


def test_a_second_one_in_the_same_folder_is_refused(first_start: Serve) -> None:
    second = Serve(first_start.state_dir, free_port())
    assert second.wait() == 1
    second.kill()
    assert second.text == (
        f"chatapi: already running in {first_start.state_dir} (process {first_start.process.pid}). "
        "Stop that one, or set CHATAPI_STATE_DIR."
    )


def test_a_port_in_use_is_named_and_another_one_proposed(first_start: Serve, start: Start) -> None:
    refused = start(port=first_start.port)
    assert refused.wait() == 1
    assert refused.text.startswith(f"chatapi: port {first_start.port} on 127.0.0.1 is in use.")
    assert f"--port {first_start.port + 1} (make run PORT={first_start.port + 1})." in refused.text
    assert len(refused.lines) == 1


def test_ctrl_c_ends_it_cleanly_and_the_next_start_keeps_everything(start: Start) -> None:
    first = start()
    first.wait_until_ready()
    assert first.stop() == 0
    assert first.lines[-1] == "Stopped."
    assert "Traceback" not in first.text
    second = start()
    second.wait_until_ready()
    assert "First start" not in second.text
    assert "ck_live_" not in second.text
    python = second.run([sys.executable, "-c", second.snippet("import os")], CHATAPI_KEY=first.key)
    assert python.returncode == 0, python.stderr
    assert second.stop() == 0


def test_an_answer_that_was_paid_for_can_be_fetched_after_a_restart(start: Start) -> None:
    first = start()
    first.wait_until_ready()
    body, headers = (
        b'{"model": "sandbox", "messages": [{"role": "user", "content": "Hello!"}]}',
        {"Idempotency-Key": "once"},
    )
    paid = answer_of(first, first.key, "/v1/chat/completions", body, headers)
    assert first.stop() == 0
    second = start()
    second.wait_until_ready()
    assert answer_of(second, first.key, "/v1/chat/completions", body, headers) == paid
    assert b"data: [DONE]" in answer_of(second, first.key, f"/v1/generations/{json.loads(paid)['id']}/stream")
    dump = embedded_valkey.dump_path(second.state_dir)
    assert not dump.exists(), "what is over since must not come back when it dies"
    old = second.child("valkey")
    os.kill(old, signal.SIGTERM)
    second.wait_until(
        lambda: second.child("valkey") not in {0, old} and not dump.exists() and answers(second, "/readyz")
    )
    assert answer_of(second, first.key, "/v1/chat/completions", body, headers) == paid


def test_ctrl_c_lets_a_running_answer_finish(start: Start) -> None:
    serve = start()
    serve.wait_until_ready()
    answer = begin_slow_answer(serve)
    serve.process.send_signal(signal.SIGINT)
    assert answer.read().rstrip().endswith(b"data: [DONE]")
    assert serve.wait() == 0
    assert serve.run([sys.executable, "manage.py", "verifyledger"]).returncode == 0


def test_a_second_ctrl_c_stops_at_once(start: Start) -> None:
    serve = start(CHATAPI_DRAIN_MS="600000")
    serve.wait_until_ready()
    with begin_slow_answer(serve, tokens=1_000):
        serve.process.send_signal(signal.SIGINT)
        serve.wait_until(lambda: "Stopping" in serve.text)
        serve.process.send_signal(signal.SIGINT)
        assert serve.wait() == 1
    assert "Traceback" not in serve.text


def test_nothing_is_left_when_it_is_killed(start: Start) -> None:
    serve = start()
    serve.wait_until_ready()
    serve.wait_until(lambda: serve.child("reaper") != 0)
    children = [serve.child(role) for role in ("web", "worker", "reaper", "valkey")]
    serve.kill()  # returns when nobody holds its output any more: but Valkey and its log
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_a_folder_that_cannot_be_written_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    serve = start(folder="file/state")
    assert serve.wait() == 1
    assert serve.text == (
        f"chatapi: cannot write to {tmp_path}/file/state (Not a directory): "
        "make the folder writable or set CHATAPI_STATE_DIR to one that is."
    )


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("CHATAPI_LEASE_MS", "soon", "CHATAPI_LEASE_MS='soon' must be a whole number."),
        ("CHATAPI_LEASE_MS", "3000", "CHATAPI_LEASE_MS=3000 is too short for CHATAPI_HEARTBEAT_MS=2000."),
        (
            "CHATAPI_LEASE_MS",
            "99999999999999999999999",
            "CHATAPI_LEASE_MS=99999999999999999999999 is too large. Use 604800000 or less.",
        ),
        (
            "CHATAPI_HEARTBEAT_MS",
            "99999999999",
            "CHATAPI_HEARTBEAT_MS=99999999999 is too large. Use 604800000 or less.",
        ),
        (
            "CHATAPI_CSRF_TRUSTED_ORIGINS",
            "example.com",
            "CHATAPI_CSRF_TRUSTED_ORIGINS: 'example.com' is no origin. Use https://",
        ),
        (
            "CHATAPI_KEY_PEPPER",
            "hunter2",
            "CHATAPI_KEY_PEPPER has fewer than 32 characters. Use what `openssl rand -hex 32` prints.",
        ),
        ("CHATAPI_SECRET_KEY", "hunter2", "CHATAPI_SECRET_KEY has fewer than 32 characters."),
        ("CHATAPI_DEFAULT_MODEL", "", "CHATAPI_DEFAULT_MODEL is empty."),
        ("CHATAPI_STALL_MS", "0", "CHATAPI_STALL_MS=0 is not positive. Use 1 or more. (chatapi.E002)"),
        ("CHATAPI_PING_MS", "-1", "CHATAPI_PING_MS=-1 is negative. Use 0 for none, or more. (chatapi.E002)"),
        ("CHATAPI_DEBUG", "maybe", "CHATAPI_DEBUG='maybe' must be one of"),
        (
            "CHATAPI_DEFAULT_DIALECT",
            "klingon",
            "CHATAPI_DEFAULT_DIALECT='klingon' is not a dialect. Use one of",
        ),
        ("CHATAPI_LOG_LEVEL", "loud", "CHATAPI_LOG_LEVEL='loud' must be one of"),
        (
            "DATABASE_URL",
            "mysql://localhost/chatapi",
            "DATABASE_URL must start with sqlite:/// or postgres://, not with 'mysql'.",
        ),
        (
            "DATABASE_URL",
            "postgres://u:hunter2@127.0.0.1:1/x",
            "the database can't be reached (connection failed: ",
        ),
        (
            "DATABASE_URL",
            "postgres://u:hunter2/x@127.0.0.1/x",
            "DATABASE_URL is not a database URL: user and password must be percent-enc",
        ),
        ("CHATAPI_DATABASE_POOL_SIZE", "0", "CHATAPI_DATABASE_POOL_SIZE=0 is not positive."),
        ("DATABASE_URL", "sqlite:///", "DATABASE_URL names no database: "),
        ("REDIS_URL", "http://localhost", "REDIS_URL must be a Redis URL."),
        (
            "REDIS_URL",
            "redis://:hunter2/x@127.0.0.1",
            "a Redis URL can't be read (user and password must be percent-encoded, ",
        ),
        (
            "REDIS_URL",
            "redis://:hunter2@127.0.0.1/0?ssl=true",
            "a Redis URL can't be read (user and password must be percent-encoded, ",
        ),
        (
            "REDIS_URL",
            "redis://:hunter2@127.0.0.1:1",
            "Redis can't be reached (Error 111 connecting to 127.0.0.1:1.",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    start: Start, variable: str, value: str, says: str
) -> None:
    serve = start(**{variable: value})
    assert serve.wait() == 1
    assert serve.text.startswith(f"chatapi: {says}")
    assert len(serve.lines) == 1
    assert "hunter2" not in serve.text


@pytest.mark.parametrize("port", ["0", "0x1", "99999", "-1", "8_0", "٨٠", "0000801234", "9" * 5_000, ""])
def test_what_is_no_port_is_one_line_that_says_what_is(start: Start, port: str) -> None:
    serve = start(f"--port={port}")
    assert serve.wait() == 1
    assert serve.text == f"chatapi: {port!r} is no port. Use a number from 1 to 65535: make run PORT=9000"


def test_ctrl_c_while_the_program_is_being_loaded_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "django").mkdir()
    (tmp_path / "django" / "__init__.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "manage.py", "serve"], env=environment, capture_output=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_what_is_none_of_our_processes_is_one_line_that_says_what_is(start: Start) -> None:
    serve = start("--only=foo")
    assert serve.wait() == 1
    assert serve.text == "chatapi: 'foo' is not a process of chatapi: --only takes web, worker, reaper."


def test_a_database_that_is_none_is_named(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "chatapi.sqlite3").write_text(
        "not a database at all, but long enough to be looked at" * 100
    )
    serve = start()
    assert serve.wait() == 1
    path = tmp_path / "state" / "chatapi.sqlite3"
    assert serve.text == (
        f"chatapi: the database can't be reached (file is not a database): check {path}, or set DATABASE_URL."
    )


@pytest.mark.parametrize(
    ("secrets", "says"),
    [
        (b"", "damaged (it lacks CHATAPI_KEY_PEPPER and CHATAPI_SECRET_KEY)"),
        (b"CHATAPI_SECRET_KEY=hunter2hunter2\nCHATAPI_KEY_PEP", "damaged (it lacks CHATAPI_KEY_PEPPER)"),
        (
            b"CHATAPI_SECRET_KEY=hunter2\nCHATAPI_KEY_PEPPER=hunter2\nhunter2\n",
            "damaged (line 3 is not NAME=VALUE)",
        ),
    ],
)
def test_broken_secrets_are_named_and_not_shown(
    start: Start, tmp_path: Path, secrets: bytes, says: str
) -> None:
    (tmp_path / "state").mkdir()
    path = tmp_path / "state" / "secrets.env"
    path.write_bytes(secrets)
    serve = start()
    assert serve.wait() == 1
    assert (
        serve.text
        == f"chatapi: {path} is {says}: restore it. Without its pepper no API key is valid any more."
    )
    path.write_bytes(b"\xff\xfe\x00")
    assert (again := start()).wait() == 1
    assert again.text == f"chatapi: cannot read {path} (it is no text)."


@pytest.mark.parametrize("role", ["web", "worker", "reaper"])
def test_a_process_alone_that_lacks_what_it_needs_says_what_and_ends(start: Start, role: str) -> None:
    empty = start("--only", role)
    assert empty.wait() == 1
    assert empty.text.startswith("chatapi: the database ")
    assert " lacks tables or columns of this version: run manage.py migrate first, or set " in empty.text
    assert empty.run([sys.executable, "manage.py", "migrate"]).returncode == 0
    unset = start("--only", role)
    assert unset.wait() == 1
    assert "): set REDIS_URL. Without it, only the whole service, manage.py serve, has" in unset.text
    lonely = start("--only", role, REDIS_URL="redis://127.0.0.1:1")
    assert lonely.wait() == 1
    assert lonely.text.startswith("chatapi: Redis can't be reached (Error 111 connecting to 127.0.0.1:1.")
    assert len(lonely.lines) == 1


@pytest.mark.parametrize(
    ("host", "environment"),
    [
        ("127.0.0.2", {}),
        ("::1", {}),
        ("localhost", {}),
        ("127.0.0.1", {"CHATAPI_ALLOWED_HOSTS": "chat.example.com"}),
    ],
)
def test_it_starts_on_any_address_and_under_any_name(
    start: Start, host: str, environment: dict[str, str]
) -> None:
    serve = start("--host", host, **environment)
    serve.wait_until_ready()
    python = serve.run([sys.executable, "-c", serve.snippet("from openai")])
    assert python.returncode == 0, python.stderr
    opens = host not in {"127.0.0.2"} and not environment
    assert ("open only under the names in CHATAPI_ALLOWED_HOSTS" in serve.text) is not opens
    url = re.search(r"(\S+)/admin/ +for operators", serve.text)
    assert url
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url[1]).netloc)
    connection.request("GET", "/console/sign-in")
    assert connection.getresponse().status == (200 if opens else 400)
    connection.close()
    assert serve.stop() == 0


def begin_slow_answer(serve: Serve, tokens: int = 20) -> http.client.HTTPResponse:
    """Ask for a stream, and read its first event."""
    message = f'{{"role": "user", "content": "[sandbox tokens={tokens} delay_ms=100]"}}'
    body = f'{{"model": "sandbox", "stream": true, "messages": [{message}]}}'
    headers = {"Authorization": f"Bearer {serve.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{serve.port}/v1/chat/completions", body.encode(), headers
    )
    answer: http.client.HTTPResponse = urllib.request.urlopen(request)
    assert answer.readline().startswith(b"data: ")
    return answer


def answer_of(
    serve: Serve, key: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the answer to a GET, or to a POST of that JSON."""
    sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **(headers or {})}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{serve.port}{path}", body, sent)
    ) as answer:
        shown: bytes = answer.read()
    return shown
