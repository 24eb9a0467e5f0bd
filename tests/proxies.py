"""Runs nginx and Caddy with the examples in deploy/, and sends requests to them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.installation import ROOT, free_port
from tests.server_process import running

FOLDER = ROOT / "deploy"
HOST = "chat.example.com"
"""The name in the certificate and in the examples."""
PASSWORD = "an-operator-s-password"

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None and not os.environ.get("CI"),
    reason="nginx is not installed: apt-get install nginx-light",
)
needs_caddy = pytest.mark.skipif(
    shutil.which("caddy") is None, reason="Caddy is not installed: apt-get install caddy"
)


def _caddy_version() -> tuple[int, ...]:
    if shutil.which("caddy") is None:
        return ()
    printed = subprocess.run(["caddy", "version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(number) for number in re.findall(r"\d+", printed)[:3])


needs_caddy_2_11_2 = pytest.mark.skipif(
    _caddy_version() < (2, 11, 2), reason="Caddy loses the bodies of repeated requests before 2.11.2"
)


@contextmanager
def nginx(
    port: int, folder: Path, other_port: int = 0, *, example: str = "chatapi.conf", headers: str = ""
) -> Iterator[int]:
    """Run nginx with an example in front of the web process on `port`; yield the port of its TLS server.

    The other one of its two servers is at `other_port`; by default, nothing listens there. `headers` replaces
    the example's directives for HTTP's version and headers.
    """
    make_certificate(folder)
    plain, tls = free_port(), free_port()
    text = (FOLDER / "nginx" / example).read_text()
    text = text.replace("# ssl_verify_client", "ssl_verify_client")
    for written, here in {
        r"10\.0\.0\.1:8000": f"127.0.0.1:{other_port or free_port()}",
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
        f"user root; daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{\n{paths}access_log off;\ninclude {folder}/chatapi.conf;\n}}\n"
    )
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with running(command, (folder / "pid").exists, folder / "error.log"):
        yield tls


@contextmanager
def caddy(port: int, folder: Path, other_port: int = 0) -> Iterator[int]:
    """Run Caddy with its example in front of the web process on `port`; yield the port of its TLS server."""
    make_certificate(folder)
    tls, admin = free_port(), free_port()
    text = (FOLDER / "caddy" / "Caddyfile").read_text()
    text = re.sub(r"\t# (tls|\tclient_auth|\t\tmode|\t}|})", r"\t\1", text)
    site = f"https://chat.example.com:{tls} {{\nbind 127.0.0.1"
    for written, here in {
        "10.0.0.1:8000": f"127.0.0.1:{other_port or free_port()}",
        "10.0.0.2:8000": f"127.0.0.1:{port}",
        "chat.example.com {": site,
        "tls {": f"tls {folder}/certificate {folder}/key {{",
    }.items():
        text = text.replace(written, here)
    # No redirection, which needs port 80; `urllib` names no server in its handshake.
    options = f"{{\nadmin 127.0.0.1:{admin}\nauto_https disable_redirects\ndefault_sni chat.example.com\n}}\n"
    (folder / "Caddyfile").write_text(options + text)
    command = ["caddy", "run", "--config", str(folder / "Caddyfile")]

    def is_up() -> bool:
        return "serving initial configuration" in (folder / "error.log").read_text()

    with running(command, is_up, folder / "error.log", HOME=str(folder)):
        yield tls


def make_certificate(folder: Path) -> None:
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=chat.example.com"]
    names = ["-addext", "subjectAltName=DNS:chat.example.com"]
    subprocess.run(["openssl", *words, *names, *files], check=True, capture_output=True)


def curl(port: int, path: str, *arguments: str) -> str:
    """Return the output of curl for a request to the name of the certificate, as if `port` were 443."""
    command = _curl_command(port, path, arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def curl_lines(port: int, path: str, *arguments: str) -> Iterator[str]:
    """Yield the lines of curl's output as they come, without empty ones."""
    command = _curl_command(port, path, ["--no-buffer", *arguments])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from (line.strip() for line in process.stdout if line.strip())
    assert process.returncode == 0


def _curl_command(port: int, path: str, arguments: Sequence[str]) -> list[str]:
    name = f"{HOST}:{port}"
    words = ["-sk", "--resolve", f"{name}:127.0.0.1", "-H", f"Host: {HOST}", "--max-time", "30"]
    return ["curl", *words, f"https://{name}{path}", *arguments]


class Browser:
    """Requests through a proxy, also below a prefix, with a jar of cookies."""

    def __init__(self, port: int, jar: Path, prefix: str = "") -> None:
        self._port, self._jar, self._console = port, jar, f"{prefix}/console/"
        self._words = ["-b", str(jar), "-c", str(jar), "-e", f"https://{HOST}{prefix}/"]

    def sign_in(self, *, name: str = "op", password: str = PASSWORD) -> None:
        """Sign in on the console's form."""
        form = f"{self._console}sign-in?next={self._console}"
        (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(form)[2]))
        sent = {"csrfmiddlewaretoken": token, "username": name, "password": password}
        words = [word for field in sent.items() for word in ("-d", "=".join(field))]
        assert self.get(form, *words)[:2] == (302, self._console)

    def get(self, path: str, *words: str) -> tuple[int, str, str]:
        """Return the answer's status, its `Location` and its body."""
        answer = curl(self._port, path, *self._words, "-w", "\n%{http_code} %header{location}", *words)
        body, _, last = answer.rpartition("\n")
        status, _, location = last.partition(" ")
        return int(status), location, body

    def cookies(self) -> dict[str, tuple[str, str]]:
        """Return the path and the value of each cookie by name."""
        lines = [line.split("\t") for line in self._jar.read_text().splitlines() if "\t" in line]
        return {line[5]: (line[2], line[6]) for line in lines}
