"""The examples for nginx and Caddy in deploy/: proxies that pass streams on as they come."""

import asyncio
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
from typing import Any

import aiohttp
import pytest

from chatapi.worker.engines import Timeouts
from tests import client_certificates
from tests.installation import ROOT, Installation, free_port, wait_for
from tests.proxies import (
    FOLDER,
    HOST,
    PASSWORD,
    Browser,
    caddy,
    curl,
    curl_lines,
    needs_caddy,
    needs_caddy_2_11_2,
    needs_nginx,
    nginx,
)

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.timeout(180)]


MODELS = {
    "slow": {"tokens": 20, "rate": 20},
    "slower": {"tokens": 30, "rate": 10},
    "long": {"tokens": 900, "rate": 20},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(
        tmp_path_factory.mktemp("proxied"),
        CHATAPI_TRUSTED_PROXIES="127.0.0.1",
        CHATAPI_CLIENT_CERTIFICATE_HEADER="client-cert",
        CHATAPI_ALLOWED_HOSTS=HOST,
        CHATAPI_SECURE_COOKIES="on",
    ) as service:
        service.start(MODELS)
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
    """Run a proxy with its example; yield the port of its TLS server."""
    with request.param(service.port, tmp_path_factory.mktemp("proxy")) as port:
        yield port


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_stream_comes_through_a_proxy_as_it_is_generated(
    service: Installation, proxy: int, version: str
) -> None:
    words = [word for header in headers_of(service).items() for word in ("-H", ": ".join(header))]
    words += ["-d", json.dumps(chat("slower")), "-w", "HTTP/%{http_version}"]
    frames, sent = [], []
    for line in curl_lines(proxy, "/openai/v1/chat/completions", f"--http{version}", *words):
        frames.append(line)
        sent.append(service.calls("slower")[-1]["tokens"])
    # The first frame is the role, the last four are the finish, the usage, the end and curl's own line.
    assert len(frames) == 1 + 30 + 4
    assert sent[1] < 30, "the client reads the first token before the upstream sends the last one"
    assert len(set(sent)) > 5, "the frames come one after the other"
    usage = json.loads(frames[-3].removeprefix("data: "))
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 30)
    assert frames[-2:] == ["data: [DONE]", f"HTTP/{version}"]


@pytest.fixture(scope="module")
def authority() -> client_certificates.Made:
    return client_certificates.make("authority")


@pytest.fixture(scope="module")
def certified_key(service: Installation, authority: client_certificates.Made) -> str:
    """Return a key that needs a client certificate of the authority."""
    return client_certificates.make_key(service, authority)


def test_a_proxy_passes_on_the_certificate_of_the_client(
    proxy: int, certified_key: str, authority: client_certificates.Made, tmp_path: Path
) -> None:
    def said(*words: str) -> str:
        return curl(proxy, "/v1/key", "-H", f"Authorization: Bearer {certified_key}", *words)

    leaf, other = authority.issue(), client_certificates.make("authority").issue()
    forged = ["-H", f"Client-Cert: {leaf.header}"]
    for words in ([], forged, ["-H", "Client_Cert: x"]):
        assert "none was sent" in said(*words)
    for words in ([], forged):
        assert json.loads(said(*leaf.write(tmp_path), *words))["object"] == "api_key"
        assert "no active certificate that is valid now" in said(*other.write(tmp_path), *words)


def chat(model: str, *, is_stream: bool = True) -> dict[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **options}


def headers_of(service: Installation) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.keys['live']}", "Content-Type": "application/json"}


def request_of(service: Installation, proxy: int, body: dict[str, Any]) -> urllib.request.Request:
    url = f"https://127.0.0.1:{proxy}/openai/v1/chat/completions"
    return urllib.request.Request(url, json.dumps(body).encode(), headers_of(service) | {"Host": HOST})


def stream_times(service: Installation, proxy: int) -> list[float]:
    """Return when each event of a stream has come."""
    began, times = time.monotonic(), []
    context = ssl._create_unverified_context()
    request = request_of(service, proxy, chat("slow"))
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
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
    request = request_of(service, proxy, chat("slow", is_stream=False))
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
    """Otherwise nginx itself would answer 502 for some time after a restart of all processes."""
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
    """Return the answers that clients get through a proxy with one machine that answers and one that is gone;
    each client sends its number behind `words`.
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
    """An answer in one piece sends nothing before its end, and a client that is cut off pays all the same."""
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


@pytest.fixture(scope="module")
def operator(service: Installation) -> None:
    """Make the operator whom `Browser.sign_in` signs in."""
    command = ["createsuperuser", "--no-input", "--username=op", "--email=op@x.example"]
    done = subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=ROOT,
        env=service.environment | {"DJANGO_SUPERUSER_PASSWORD": PASSWORD},
        check=False,
    )
    assert done.returncode == 0


async def test_the_pages_live_get_their_news_through_a_proxy(
    service: Installation, proxy: int, operator: None, tmp_path: Path
) -> None:
    browser = Browser(proxy, tmp_path / "cookies")
    browser.sign_in()
    _, console, _ = browser.get("/console/")
    cookies = "; ".join(f"{name}={value}" for name, (_, value) in browser.cookies().items())
    session = aiohttp.ClientSession(
        f"https://127.0.0.1:{proxy}", connector=aiohttp.TCPConnector(ssl=False), headers={"Host": HOST}
    )
    async with session, asyncio.timeout(60):
        for path in ("/admin/live/feed", f"{console}live/feed"):
            opening = session.ws_connect(path, origin=f"https://{HOST}", headers={"Cookie": cookies})
            asking = session.post("/v1/chat/completions", json=chat("long"), headers=headers_of(service))
            async with opening as feed:
                async with asking as answer:
                    request_id = answer.headers["x-generation-id"]
                    while request_id not in [row["id"] for row in (await feed.receive_json())["rows"]]:
                        pass
                while request_id not in (await feed.receive_json())["gone"]:
                    pass


@pytest.fixture(scope="module")
def below_a_prefix(
    service: Installation, operator: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """Return a browser in which an operator has signed in below /llm."""
    folder = tmp_path_factory.mktemp("prefix")
    with (
        service.another_web(CHATAPI_PATH_PREFIX="/llm") as web,
        nginx(web.port, folder, example="prefix.conf") as port,
    ):
        browser = Browser(port, folder / "cookies", "/llm")
        browser.sign_in()
        yield browser


@needs_nginx
def test_below_a_prefix_no_cookie_reaches_other_services(below_a_prefix: Browser) -> None:
    form = below_a_prefix.get("/llm/admin/mail/")[2]
    token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)[0]
    assert below_a_prefix.get("/llm/admin/mail/", "-d", f"csrfmiddlewaretoken={token}")[0] == 302
    paths = {name: path for name, (path, _) in below_a_prefix.cookies().items()}
    assert paths == dict.fromkeys(paths, "/llm/")
    assert {"sessionid", "csrftoken", "chatapi_messages"} <= paths.keys()


@needs_nginx
def test_below_a_prefix_no_client_forges_a_certificate(
    below_a_prefix: Browser, certified_key: str, authority: client_certificates.Made
) -> None:
    forged = ("-H", f"Client-Cert: {authority.issue().header}")
    answer = below_a_prefix.get("/llm/v1/key", "-H", f"Authorization: Bearer {certified_key}", *forged)
    assert (answer[0], "none was sent" in answer[2]) == (401, True)


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
    # 405: the URL of a form.
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
    words = (*key, "-H", "Content-Type: application/json", "-d", json.dumps(chat("slow")))
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
