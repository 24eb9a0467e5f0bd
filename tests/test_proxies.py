"""The examples for nginx and Caddy in deploy/: proxies that pass streams on as they come."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from chatapi.worker.engines import Timeouts
from tests.installation import ROOT, Installation, free_port, wait_for
from tests.proxies import FOLDER, caddy, curl, needs_caddy, needs_caddy_2_11_2, needs_nginx, nginx

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(
        tmp_path_factory.mktemp("proxied"),
        CHATAPI_TRUSTED_PROXIES="127.0.0.1",
        CHATAPI_ALLOWED_HOSTS="chat.example.com",
        CHATAPI_SECURE_COOKIES="on",
    ) as service:
        service.start({"slow": {"tokens": 20, "rate": 20}})
        yield service


Runner = Callable[..., AbstractContextManager[int]]
PROXIES = [
    pytest.param(nginx, marks=needs_nginx, id="nginx"),
    pytest.param(caddy, marks=needs_caddy, id="caddy"),
]


@pytest.fixture(scope="module", params=PROXIES)
def proxy(
    request: pytest.FixtureRequest, service: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Run a proxy with its example; the port of its TLS server."""
    with request.param(service.port, tmp_path_factory.mktemp("proxy")) as port:
        yield port


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_stream_comes_through_a_proxy_as_it_is_generated(
    service: Installation, proxy: int, version: str
) -> None:
    if version == "--http2":
        request = streamed(service, proxy)
        headers = [
            word
            for name, value in request.header_items()
            if name != "Host"
            for word in ("-H", f"{name}: {value}")
        ]
        body = cast(bytes, request.data).decode()
        assert curl(proxy, "/openai/v1/chat/completions", version, *headers, "-d", body).endswith(
            "data: [DONE]\n\n"
        )
        return
    times = stream_times(service, proxy)
    # 20 tokens at 20 a second: a buffer would bring all at the end.
    assert times[-1] - times[1] > 0.4


def streamed(service: Installation, proxy: int) -> urllib.request.Request:
    body = json.dumps({"model": "slow", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
    headers = {
        "Authorization": f"Bearer {service.keys['live']}",
        "Content-Type": "application/json",
        "Host": "chat.example.com",
    }
    url = f"https://127.0.0.1:{proxy}/openai/v1/chat/completions"
    return urllib.request.Request(url, body.encode(), headers)


def stream_times(service: Installation, proxy: int) -> list[float]:
    """Return when each event of a stream has come."""
    began, times = time.monotonic(), []
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(streamed(service, proxy), timeout=30, context=context) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                times.append(time.monotonic() - began)
    return times


FORGED = {
    "X-Forwarded-For": "192.0.2.66",
    "X-Forwarded-Proto": "http",
    "X-Forwarded-Host": "evil.example",
    "Forwarded": "for=192.0.2.66;proto=http;host=evil.example",
}


@pytest.mark.parametrize("version", ["--http1.0 --no-alpn", "--http1.1", "--http2"])
def test_a_client_of_a_proxy_can_forge_no_address_scheme_or_host(proxy: int, version: str) -> None:
    forged = [word for name, value in FORGED.items() for word in ("-H", f"{name}: {value}")]
    page = curl(proxy, "/", *version.split(), *forged)
    assert "curl https://chat.example.com/v1/chat/completions" in page
    assert "evil.example" not in page


def test_a_client_that_leaves_a_proxy_ends_an_answer_that_is_not_streamed(
    service: Installation, proxy: int
) -> None:
    before = len(service.calls("slow"))
    request = streamed(service, proxy)
    request.data = cast(bytes, request.data).replace(b'"stream": true', b'"stream": false')
    context = ssl._create_unverified_context()
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(request, timeout=0.4, context=context)
    wait_for(lambda: bool(service.calls("slow")[before:]), "the call of the upstream")
    wait_for(lambda: service.calls("slow")[-1]["closed_at"] is not None, "the end of the call")
    assert service.calls("slow")[-1]["is_peer_gone"]


@needs_nginx
def test_a_proxy_with_http_1_0_and_forwarded_passes_streams_and_addresses_on(
    service: Installation, tmp_path: Path
) -> None:
    """Without `proxy_http_version` nginx 1.22 speaks HTTP/1.0; the name in `Host` is that of its upstream."""
    headers = 'proxy_set_header Forwarded "for=$remote_addr;proto=$scheme;host=$host";'
    with nginx(service.port, tmp_path, headers=headers) as port:
        assert "curl https://chat.example.com/v1/chat/completions" in curl(port, "/")
        answer = curl(port, "/console/sign-in", "-o", "/dev/null", "-D", "-")
        assert re.search(r"(?im)^strict-transport-security: ", answer)
        times = stream_times(service, port)
    assert len(times) >= 20
    assert times[-1] - times[1] > 0.4


class Slow(BaseHTTPRequestHandler):
    """Answers probes at once, and other paths when the test lets it."""

    has_begun, may_end = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        if self.path not in ("/healthz", "/readyz"):
            self.has_begun.set()
            self.may_end.wait(30)
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@needs_nginx
def test_nginx_asks_again_after_all_processes_were_down_during_a_long_answer(
    tmp_path: Path,
) -> None:
    """So a rolling restart, or one of all, has no moments in which nginx answers 502 itself."""
    port = free_port()
    with nginx(port, tmp_path) as proxy, ThreadPoolExecutor(1) as threads:
        assert "502" in curl(proxy, "/healthz")
        with ThreadingHTTPServer(("127.0.0.1", port), Slow) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            long = threads.submit(curl, proxy, "/long", "-w", "%{http_code}")
            try:
                assert Slow.has_begun.wait(5)
                assert curl(proxy, "/healthz", "-w", "%{http_code}") == "200"
            finally:
                Slow.may_end.set()
                assert long.result() == "200"
                server.shutdown()


@contextmanager
def gone() -> Iterator[int]:
    """Yield a port at which connections are neither made nor refused, as at a machine that is gone."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as clients:
        for _ in range(4):  # Linux drops what is beyond the queue of the server
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield int(server.getsockname()[1])


def eight_answers(run: Runner, tmp_path: Path, path: str, *words: str) -> list[str]:
    """Return what clients get of a proxy with one machine that answers and one that is gone; each sends its
    number behind `words`.
    """
    port = free_port()
    with (
        gone() as other,
        ThreadingHTTPServer(("127.0.0.1", port), Slow) as server,
        run(port, tmp_path, other) as proxy,
        ThreadPoolExecutor(8) as threads,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers = [threads.submit(curl, proxy, path, *words, str(number)) for number in range(8)]
        found = [answer.result() for answer in answers]
        server.shutdown()
    return found


@pytest.mark.parametrize("run", PROXIES)
def test_a_machine_that_is_gone_costs_no_request(tmp_path: Path, run: Runner) -> None:
    found = eight_answers(run, tmp_path, "/healthz", "-w", "%{http_code}", "-A")
    assert found == ["200"] * 8


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(nginx, marks=needs_nginx, id="nginx"),
        pytest.param(caddy, marks=needs_caddy_2_11_2, id="caddy"),
    ],
)
def test_a_machine_that_is_gone_costs_no_request_with_a_body(
    tmp_path: Path, run: Runner, version: str
) -> None:
    found = eight_answers(run, tmp_path, "/v1/responses", version, "-w", " %{http_code}", "-d")
    assert found == [f"{number} 200" for number in range(8)]


def test_a_proxy_waits_for_an_answer_that_is_not_streamed() -> None:
    """Such an answer sends nothing before its end, and a client that is cut off pays all the same."""
    seconds = Timeouts().total_ms // 1_000
    for example in ("chatapi.conf", "prefix.conf"):
        [wait_s] = re.findall(r"proxy_read_timeout (\d+)s;", (FOLDER / "nginx" / example).read_text())
        assert int(wait_s) >= seconds
    [hours] = re.findall(r"\bread_timeout (\d+)h", (FOLDER / "caddy" / "Caddyfile").read_text())
    assert int(hours) * 3_600 >= seconds


def test_a_proxy_says_that_it_is_https_and_hides_the_metrics(proxy: int) -> None:
    headers = curl(proxy, "/console/sign-in", "-o", "/dev/null", "-D", "-")
    assert " 200" in headers.splitlines()[0]
    assert re.search(r"(?im)^strict-transport-security: max-age=31536000", headers)
    assert re.search(r"(?im)^set-cookie: csrftoken=.*secure", headers)
    assert " 404" in curl(proxy, "/metrics", "-o", "/dev/null", "-D", "-").splitlines()[0]


def test_a_body_that_is_too_large_is_a_413(service: Installation, proxy: int, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b" " * 9_000_000)
    words = ["-H", f"Authorization: Bearer {service.keys['live']}", "-H", "Content-Type: application/json"]
    for encoding in ("identity", "chunked"):
        words += ["-H", f"Transfer-Encoding: {encoding}"] if encoding == "chunked" else []
        told = ["-o", "/dev/null", "-w", "%{http_code}", "--data-binary", f"@{tmp_path}/body"]
        assert curl(proxy, "/v1/chat/completions", "--http1.1", *words, *told) == "413"


class Browser:
    """Requests through nginx below the prefix, with a jar of cookies."""

    def __init__(self, port: int, jar: Path) -> None:
        self._port, self._jar = port, jar
        self._words = ["-b", str(jar), "-c", str(jar), "-e", "https://chat.example.com/llm/"]

    def get(self, path: str, *words: str) -> tuple[int, str, str]:
        """Return the answer's status, its `Location` and its body."""
        answer = curl(self._port, path, *self._words, "-w", "\n%{http_code} %header{location}", *words)
        body, _, last = answer.rpartition("\n")
        status, _, location = last.partition(" ")
        return int(status), location, body

    def cookies(self) -> dict[str, str]:
        """Return the paths of the cookies by name."""
        lines = [line.split("\t") for line in self._jar.read_text().splitlines() if "\t" in line]
        return {line[5]: line[2] for line in lines}


@pytest.fixture(scope="module")
def below_a_prefix(service: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser in which an operator has signed in below /llm."""
    operator = {"DJANGO_SUPERUSER_PASSWORD": "an-operator-s-password"}
    made = subprocess.run(
        [
            sys.executable,
            "manage.py",
            "createsuperuser",
            "--no-input",
            "--username=op",
            "--email=op@x.example",
        ],
        cwd=ROOT,
        env=service.environment | operator,
        check=False,
    )
    assert made.returncode == 0
    folder = tmp_path_factory.mktemp("prefix")
    with (
        service.another_web(CHATAPI_PATH_PREFIX="/llm") as web,
        nginx(web.port, folder, example="prefix.conf") as port,
    ):
        browser = Browser(port, folder / "cookies")
        _, _, form = browser.get("/llm/console/sign-in?next=/llm/console/")
        (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form))
        sent = {"csrfmiddlewaretoken": token, "username": "op", "password": "an-operator-s-password"}
        words = [word for name, value in sent.items() for word in ("-d", f"{name}={value}")]
        assert browser.get("/llm/console/sign-in?next=/llm/console/", *words)[:2] == (302, "/llm/console/")
        yield browser


@needs_nginx
def test_below_a_prefix_no_cookie_reaches_other_services(below_a_prefix: Browser) -> None:
    form = below_a_prefix.get("/llm/admin/mail/")[2]
    token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)[0]
    assert below_a_prefix.get("/llm/admin/mail/", "-d", f"csrfmiddlewaretoken={token}")[0] == 302
    cookies = below_a_prefix.cookies()
    assert cookies == dict.fromkeys(cookies, "/llm/")
    assert {"sessionid", "csrftoken", "chatapi_messages"} <= cookies.keys()


@needs_nginx
def test_below_a_prefix_every_link_of_a_page_leads_to_a_page_below_it(below_a_prefix: Browser) -> None:
    browser = below_a_prefix
    status, console, _ = browser.get("/llm/console/")
    assert (status, console[:13]) == (302, "/llm/console/")
    pages = ["/llm/", "/llm/nowhere", "/llm/docs", "/llm/admin/", "/llm/admin/live/", f"{console}playground"]
    found = set[str]()
    for page in pages:
        status, _, body = browser.get(page)
        assert status == (404 if page == "/llm/nowhere" else 200), page
        found |= set(re.findall(r'(?:href|src|action|data-[a-z-]+)="(/[^"#?]*)', body))
    assert len(found) > 30
    assert [link for link in found if not link.startswith("/llm/")] == []
    answers = {link: browser.get(link)[0] for link in sorted(found) if not link.endswith(("ID", "/feed"))}
    # 405: a form's.
    assert {link for link, status in answers.items() if status >= 400 and status != 405} == set()


@needs_nginx
def test_below_a_prefix_snippets_and_locations_have_it(
    service: Installation, below_a_prefix: Browser
) -> None:
    get = below_a_prefix.get
    assert "curl https://chat.example.com/llm/v1/chat/completions" in get("/llm/")[2]
    assert json.loads(get("/llm/openapi.json")[2])["servers"] == [{"url": "/llm"}]
    assert get("/llm/admin")[:2] == (301, "/llm/admin/")
    assert "Did you mean /llm/v1/models?" in get("/llm/models")[2]
    key = ("-H", f"Authorization: Bearer {service.keys['live']}")
    body = {"model": "slow", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    words = (*key, "-H", "Content-Type: application/json", "-d", json.dumps(body))
    assert get("/llm/openai/v1/chat/completions", *words)[2].endswith("data: [DONE]\n\n")
    status, location, _ = get("/llm/v1/chat/completions", *words, "-H", "Prefer: respond-async")
    assert (status, location[:18]) == (202, "/llm/opentoken/v1/")
    assert get(location, *key)[0] == 200
    ticket = json.loads(get("/llm/openai/v1/chat/completions/tickets", *words)[2])
    assert ticket["url"].startswith("/llm/openai/v1/")
    assert get(ticket["url"])[2].endswith("data: [DONE]\n\n")


@needs_caddy
def test_caddy_accepts_its_configuration(tmp_path: Path) -> None:
    command = ["caddy", "validate", "--config", str(FOLDER / "caddy" / "Caddyfile"), "--adapter", "caddyfile"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
