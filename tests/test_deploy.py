"""The files in deploy/: manifests that fit the project, and proxies that pass streams on as they come."""

import argparse
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from django.core.management import load_command_class

from chatapi import local_secrets, settings
from chatapi.worker.engines import Timeouts
from tests.chatapi.test_compose import README_SETTINGS
from tests.installation import ROOT, Installation, die_with_parent, free_port, wait_for

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.timeout(180)]
FOLDER = ROOT / "deploy"
MANIFESTS: list[dict[str, Any]] = [
    document
    for path in sorted((FOLDER / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in MANIFESTS if each["kind"] == kind]


PODS = [each["spec"]["template"] for each in [*of_kind("Deployment"), *of_kind("Job")]]
CONFIG = of_kind("ConfigMap")[0]["data"]


# ---- Kubernetes; `make lint` compares the manifests with the schemas


def test_there_is_all_that_an_installation_needs() -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in MANIFESTS}
    for role in ("web", "worker", "reaper"):
        assert ("Deployment", f"chatapi-{role}") in names
    for role in ("web", "worker"):
        assert {
            ("PodDisruptionBudget", f"chatapi-{role}"),
            ("HorizontalPodAutoscaler", f"chatapi-{role}"),
        } <= names
    assert {("Job", "chatapi-migrate"), ("Service", "chatapi"), ("Secret", "chatapi-upstreams")} <= names


@pytest.mark.parametrize(
    "pod", PODS, ids=lambda pod: pod["metadata"]["labels"]["app.kubernetes.io/component"]
)
def test_a_pod_runs_a_command_that_exists_without_rights(pod: dict[str, Any]) -> None:
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    python, manage, command, *arguments = container["args"]
    assert (python, manage) == ("python", "manage.py")
    app = "django.core" if command == "migrate" else "chatapi"
    parser: argparse.ArgumentParser = load_command_class(app, command).create_parser("manage.py", command)
    parser.parse_args(arguments)
    user = re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert user is not None
    assert spec["securityContext"]["runAsUser"] == int(user[1])
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert spec["enableServiceLinks"] is False
    assert {"name": "state", "mountPath": "/var/lib/chatapi"} in container["volumeMounts"]


@pytest.mark.parametrize("deployment", of_kind("Deployment"), ids=lambda each: each["metadata"]["name"])
def test_a_deployment_ends_after_its_drain_and_never_has_too_few(deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] * 1_000 >= int(CONFIG["CHATAPI_DRAIN_MS"]) + 10_000
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (container,) = spec["containers"]
    assert {"readinessProbe", "livenessProbe"} <= set(container)
    assert "lifecycle" not in container, "the lame duck is in the process"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels


def test_probes_and_autoscalers_name_what_exists() -> None:
    (web,) = [each for each in of_kind("Deployment") if each["metadata"]["name"] == "chatapi-web"]
    (container,) = web["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    deployments = {each["metadata"]["name"] for each in of_kind("Deployment")}
    assert {
        each["spec"]["scaleTargetRef"]["name"] for each in of_kind("HorizontalPodAutoscaler")
    } <= deployments
    (metric,) = re.findall(r"metric: \{name: (\w+)\}", (FOLDER / "kubernetes" / "worker.yaml").read_text())
    assert metric in (ROOT / "docs" / "metrics.md").read_text()


def test_settings_and_secrets_have_names_that_are_read_and_no_values() -> None:
    main, upstreams = of_kind("Secret")
    assert set(CONFIG) | set(main["stringData"]) <= README_SETTINGS
    assert not any(value for name, value in main["stringData"].items() if name.startswith("CHATAPI_"))
    assert set(upstreams["stringData"].values()) == {""}
    with_upstreams = [
        pod
        for pod in PODS
        if {"secretRef": {"name": "chatapi-upstreams"}} in pod["spec"]["containers"][0]["envFrom"]
    ]
    assert [pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in with_upstreams] == ["worker"]
    assert settings.ALLOWED_HOSTS  # the settings can be read


# ---- nginx


needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None and not os.environ.get("CI"),
    reason="nginx is not installed: apt-get install nginx-light",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    service = Installation(
        tmp_path_factory.mktemp("proxied"),
        CHATAPI_TRUSTED_PROXIES="127.0.0.1",
        CHATAPI_ALLOWED_HOSTS="chat.example.com",
        CHATAPI_SECURE_COOKIES="on",
    )
    try:
        service.start({"slow": {"tokens": 20, "rate": 20}})
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="module")
def proxy(service: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run nginx with the example's configuration; the port of its TLS server."""
    with nginx("chatapi.conf", service.port, tmp_path_factory.mktemp("nginx")) as port:
        yield port


@contextmanager
def nginx(example: str, port: int, folder: Path, headers: str = "") -> Iterator[int]:
    """Run nginx with an example in front of the web process on `port`; yield the port of its TLS server.

    `headers` replaces what the example says of HTTP's version and headers.

    One of its two servers is not there: nginx has to go to the other one.
    """
    certificate = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=chat.example.com"]
    subprocess.run(["openssl", *words, *certificate], check=True, capture_output=True)
    plain, tls = free_port(), free_port()
    text = (FOLDER / "nginx" / example).read_text()
    for written, here in {
        r"10\.0\.0\.1:8000": f"127.0.0.1:{free_port()}",
        r"10\.0\.0\.2:8000": f"127.0.0.1:{port}",
        r"listen 80;": f"listen 127.0.0.1:{plain};",
        r"listen 443 ssl http2;": f"listen 127.0.0.1:{tls} ssl http2;",
        r"/etc/ssl/\w+\.example\.com\.pem": str(folder / "certificate"),
        r"/etc/ssl/\w+\.example\.com\.key": str(folder / "key"),
        r"server_name www": "server_name chat",
    }.items():
        text = re.sub(written, here, text)
    if headers:
        text = re.sub(r"proxy_(set_header|http_version) .*", "", text)
        text = text.replace("proxy_buffering off;", f"proxy_buffering off;\n{headers}")
    (folder / "chatapi.conf").write_text(text)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{\n{paths}access_log off;\ninclude {folder}/chatapi.conf;\n}}\n"
    )
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    process = subprocess.Popen(command, preexec_fn=die_with_parent)  # noqa: PLW1509
    try:
        wait_for(lambda: (folder / "pid").exists() or process.poll() is not None, "nginx")
        assert process.poll() is None, (folder / "error.log").read_text()
        yield tls
    finally:
        process.terminate()
        process.wait(20)


def curl(port: int, path: str, *arguments: str) -> str:
    """What curl prints of a request to the name of the certificate."""
    name = f"chat.example.com:{port}"
    words = ["curl", "-sk", "--resolve", f"{name}:127.0.0.1", "--max-time", "30", f"https://{name}{path}"]
    return subprocess.run([*words, *arguments], capture_output=True, text=True, check=True).stdout


@needs_nginx
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_stream_comes_through_nginx_as_it_is_generated(
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


@needs_nginx
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2"])
def test_a_client_of_nginx_can_forge_no_address_scheme_or_host(proxy: int, version: str) -> None:
    forged = [word for name, value in FORGED.items() for word in ("-H", f"{name}: {value}")]
    assert "curl https://chat.example.com/v1/chat/completions" in curl(proxy, "/", version, *forged)
    assert "evil.example" not in curl(proxy, "/", version, *forged)


@needs_nginx
def test_a_proxy_with_http_1_0_and_forwarded_passes_streams_and_addresses_on(
    service: Installation, tmp_path: Path
) -> None:
    """Without `proxy_http_version` nginx 1.22 speaks HTTP/1.0; the name in `Host` is that of its upstream."""
    headers = 'proxy_set_header Forwarded "for=$remote_addr;proto=$scheme;host=$host";'
    with nginx("chatapi.conf", service.port, tmp_path, headers) as port:
        assert "curl https://chat.example.com/v1/chat/completions" in curl(port, "/")
        answer = curl(port, "/console/sign-in", "-o", "/dev/null", "-D", "-")
        assert re.search(r"(?im)^strict-transport-security: ", answer)
        times = stream_times(service, port)
    assert len(times) >= 20
    assert times[-1] - times[1] > 0.4


class Slow(BaseHTTPRequestHandler):
    """Answers /healthz at once, and other paths when the test lets it."""

    has_begun, may_end = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        if self.path != "/healthz":
            self.has_begun.set()
            self.may_end.wait(30)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@needs_nginx
def test_nginx_asks_again_after_all_processes_were_down_during_a_long_answer(
    tmp_path: Path,
) -> None:
    """So a rolling restart, or one of all, has no moments in which nginx answers 502 itself."""
    port = free_port()
    with nginx("chatapi.conf", port, tmp_path) as proxy, ThreadPoolExecutor(1) as threads:
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


def test_a_proxy_waits_for_an_answer_that_is_not_streamed() -> None:
    """Such an answer sends nothing before its end, and a client that is cut off pays all the same."""
    seconds = Timeouts().total_ms // 1_000
    for example in ("chatapi.conf", "prefix.conf"):
        [wait_s] = re.findall(r"proxy_read_timeout (\d+)s;", (FOLDER / "nginx" / example).read_text())
        assert int(wait_s) >= seconds
    [hours] = re.findall(r"\bread_timeout (\d+)h", (FOLDER / "caddy" / "Caddyfile").read_text())
    assert int(hours) * 3_600 >= seconds


@needs_nginx
def test_nginx_says_that_it_is_https_and_hides_the_metrics(proxy: int) -> None:
    headers = curl(proxy, "/console/sign-in", "-o", "/dev/null", "-D", "-")
    assert " 200" in headers.splitlines()[0]
    assert re.search(r"(?im)^strict-transport-security: max-age=31536000", headers)
    assert re.search(r"(?im)^set-cookie: csrftoken=.*secure", headers)
    assert " 404" in curl(proxy, "/metrics", "-o", "/dev/null", "-D", "-").splitlines()[0]


class Browser:
    """Requests through nginx below the prefix, with a jar of cookies."""

    def __init__(self, port: int, jar: Path) -> None:
        self._port = port
        self._words = ["-b", str(jar), "-c", str(jar), "-e", "https://chat.example.com/llm/"]

    def get(self, path: str, *words: str) -> tuple[int, str, str]:
        """Return the answer's status, its `Location` and its body."""
        answer = curl(self._port, path, *self._words, "-w", "\n%{http_code} %header{location}", *words)
        body, _, last = answer.rpartition("\n")
        status, _, location = last.partition(" ")
        return int(status), location, body


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
        nginx("prefix.conf", web.port, folder) as port,
    ):
        browser = Browser(port, folder / "cookies")
        _, _, form = browser.get("/llm/console/sign-in?next=/llm/console/")
        (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form))
        sent = {"csrfmiddlewaretoken": token, "username": "op", "password": "an-operator-s-password"}
        words = [word for name, value in sent.items() for word in ("-d", f"{name}={value}")]
        assert browser.get("/llm/console/sign-in?next=/llm/console/", *words)[:2] == (302, "/llm/console/")
        cookies = (folder / "cookies").read_text().splitlines()
        assert {line.split("\t")[2] for line in cookies if "\t" in line} == {"/llm/"}
        yield browser


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


def test_the_commands_of_an_installation_by_hand_name_what_exists(tmp_path: Path) -> None:
    """docs/operations.md: settings, each process's options, and a unit that systemd reads."""
    text = (ROOT / "docs" / "operations.md").read_text()
    text = text.partition("## By hand, on Debian\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"(?m)^    (CHATAPI_\w+|\w+_URL)=", text))
    assert named < README_SETTINGS | {*local_secrets.NAMES}
    parser: Any = load_command_class("chatapi", "serve").create_parser("manage.py", "serve")
    options = re.findall(r"echo 'OPTIONS=(.*)'", text)
    assert [parser.parse_args(each.split()).only for each in options] == ["web", "web", "worker", "reaper"]
    for command in set(re.findall(r"manage\.py (\w+)", text)) - {"migrate", "createsuperuser"}:
        load_command_class("chatapi", command)
    if shutil.which("systemd-analyze"):
        [unit] = re.findall(r"(?m)(^    \[Service\]\n(?:    .+\n|\n)+)", text)
        path = tmp_path / "chatapi@web1.service"
        unit = re.sub(r"(?m)^    ", "", unit)
        path.write_text(unit.replace("/srv/chatapi/.venv/bin/python", sys.executable))
        command = ["systemd-analyze", "verify", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert path.name not in done.stderr, done.stderr


@pytest.mark.skipif(shutil.which("caddy") is None, reason="Caddy is not installed: apt-get install caddy")
def test_caddy_accepts_its_configuration(tmp_path: Path) -> None:
    command = ["caddy", "validate", "--config", str(FOLDER / "caddy" / "Caddyfile"), "--adapter", "caddyfile"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
