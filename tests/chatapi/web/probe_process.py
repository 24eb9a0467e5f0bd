"""Starts `asgi_probe.py` as a process and speaks to it byte by byte."""

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

PROJECT = Path(__file__).parents[3]
PATIENCE_SECONDS = 20.0
MEGABYTE = 1_000_000
EXPECTED_LOG = {"The application failed"}


@dataclass
class Response:
    """One HTTP response; a body that ended before its time is not whole."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_whole: bool = True

    @property
    def error(self) -> Any:
        """Return the error of an envelope, after checks that hold for every envelope."""
        assert self.headers["content-type"] == "application/json"
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.headers["x-request-id"])
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


class Client:
    """One TCP connection to a probe."""

    def __init__(
        self, port: int, *, receive_buffer_bytes: int | None = None, address: str | None = None
    ) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_SECONDS)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if address:
            self.socket.bind((address, 0))
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, target: str, *headers: str, method: str = "GET") -> None:
        self.send("\r\n".join([f"{method} {target} HTTP/1.1", "Host: probe", *headers, "", ""]).encode())

    def ask_for_websocket(self, target: str) -> None:
        """Sends the client's side of the handshake."""
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
        self.get(target, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", key)

    def open_websocket(self) -> None:
        """Open a WebSocket; frames may follow."""
        self.ask_for_websocket("/")
        head = self.head()
        assert head.status == 101
        assert "server" not in head.headers

    def has_bytes(self, within_seconds: float) -> bool:
        return bool(select.select([self.socket], [], [], within_seconds)[0])

    def is_hung_up(self) -> bool:
        """Waits for the server's end of the connection."""
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True

    def sends_no_more_than(self, size: int) -> bool:
        """Sends up to `size` bytes and more; whether the server stops reading before they are sent."""
        self.socket.settimeout(1)
        try:
            self.socket.sendall(bytes(size))
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_SECONDS)
        return False

    def head(self) -> Response:
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return Response(status, headers)

    def chunk(self) -> bytes | None:
        """Return the next chunk of a chunked body, b"" at its end; None if it was cut short."""
        size = self.file.readline()
        if not size:
            return None
        data = self.file.read(int(size, 16))
        self.file.readline()
        return data

    def response(self) -> Response:
        response = self.head()
        if response.headers.get("transfer-encoding") == "chunked":
            while data := self.chunk():
                response.body += data
            response.is_whole = data == b""
        else:
            response.body = self.file.read(int(response.headers["content-length"]))
        return response


@dataclass
class Probe:
    """A running probe process."""

    process: subprocess.Popen[str]
    port: int = 0
    happened: list[str] = field(default_factory=list)

    def client(self, **options: Any) -> Client:
        return Client(self.port, **options)

    def ask(self, target: str, *headers: str) -> Any:
        """Return the JSON answer to a GET on a new connection."""
        with self.client() as client:
            client.get(target, *headers)
            return json.loads(client.response().body)

    def exchange(self, request: bytes) -> Response:
        """Sends raw bytes and returns the response, after which the server must have hung up."""
        with self.client() as client:
            client.send(request)
            response = client.response()
            assert client.is_hung_up()
            return response

    def next_event(self) -> str:
        """Waits for the next line that the probe prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def peak_memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


@contextlib.contextmanager
def running(server: str = "daphne", **limits: object) -> Iterator[Probe]:
    """Run a probe process under `limits`, by default without a lame duck; fail on an unexpected error log.

    `limits` are the fields of `chatapi.web.server.server_limits.ServerLimits`, and `trusted_proxies`.
    """
    limits = {"lame_duck_seconds": 0, "idle_grace_seconds": 0.2} | limits
    command = [sys.executable, str(Path(__file__).with_name("asgi_probe.py")), server, json.dumps(limits)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        )
        probe = Probe(process)
        try:
            probe.port = int(probe.next_event().removeprefix("listening "))
            yield probe
            process.terminate()
            process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
            process.communicate()
            log.seek(0)
            found = set(log.read().splitlines()) - EXPECTED_LOG
            assert not found, found


def post(body: bytes, *headers: str, length: int | None = None, target: str = "/echo") -> bytes:
    """Return a request with this body; `length` is the length that it announces."""
    length = len(body) if length is None else length
    head = [f"POST {target} HTTP/1.1", "Host: probe", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(head).encode() + body
