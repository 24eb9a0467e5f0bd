"""A system that receives webhooks, for tests: an HTTP server that keeps each message and answers
with the status that the test sets."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook


class Received:
    """A received message."""

    def __init__(self, headers: dict[str, str], body: bytes) -> None:
        self.headers, self.body = headers, body

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> Any:
        """Return the content; raises `WebhookVerificationError` if the signature is another one."""
        return Webhook(secret).verify(self.body, self.headers)


class Receiver:
    """The received messages, and the answer to the next ones."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hooks"
        self.messages: list[Received] = []
        self.status, self.answer, self.headers = 200, b"thanks", {"content-type": "text/plain"}

    @property
    def accepted_ids(self) -> list[str]:
        """Return the ids of the messages that were answered with a success."""
        return [message.id for message in self.messages if message.headers["answered"] == "200"]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            receiver.messages.append(Received(headers | {"answered": str(receiver.status)}, body))
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(receiver.answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def content(message: Received) -> Any:
    """Return the message's JSON without looking at the signature."""
    return json.loads(message.body)
