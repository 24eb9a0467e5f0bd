"""A mail server for tests: it keeps each message, and refuses addresses and messages that the test names."""

import email.policy
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from pytest_django.fixtures import Settings

from chatapi.environment import Environment
from tests.installation import free_port

USER, PASSWORD = "chatapi@example.com", "p%40ss w/rd"
WAYS = ("starttls", "smtps")
"""TLS after a command of SMTP, and from the start."""


class Mailbox:
    """The messages and passwords that the server has received."""

    def __init__(self) -> None:
        self.port = 0
        self.messages: list[EmailMessage] = []
        self.receivers: list[str] = []
        self.answer = "250 OK"
        """To each message."""
        self.refused: set[str] = set()
        """Addresses that the server does not know."""
        self.passwords: list[bytes] = []
        self.commands = 0
        """How many addresses and messages were sent."""

    async def handle_RCPT(  # noqa: N802  aiosmtpd's name
        self, _: Any, __: Any, envelope: Any, address: str, ___: Any
    ) -> str:
        self.commands += 1
        if address in self.refused:
            return f"550 5.1.1 <{address}> is not known here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: Any, __: Any, envelope: Any) -> str:  # noqa: N802  aiosmtpd's name
        self.commands += 1
        if self.answer.startswith("250"):
            found: Any = message_from_bytes(envelope.content, policy=email.policy.default)
            self.messages.append(found)
            self.receivers += envelope.rcpt_tos
        return self.answer

    def authenticate(self, _: Any, __: Any, ___: Any, ____: str, data: Any) -> AuthResult:
        """Accept the right name with the right password."""
        self.passwords.append(data.password)
        is_right = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=is_right, handled=False)  # aiosmtpd answers


@contextmanager
def serving(host: str = "127.0.0.1", tls: str = "", certificate: Path | None = None) -> Iterator[Mailbox]:
    """Run a server, which with TLS asks for the user and the password."""
    mailbox = Mailbox()
    mailbox.port = free_port()
    options: dict[str, Any] = {}
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, certificate.with_name("key"))
        of_way = {
            "starttls": {"tls_context": context, "require_starttls": True, "auth_required": True},
            # To aiosmtpd, only STARTTLS is TLS.
            "smtps": {"ssl_context": context, "auth_require_tls": False},
        }
        options = of_way[tls] | {"authenticator": mailbox.authenticate}
    server = Controller(mailbox, hostname=host, port=mailbox.port, **options)
    server.start()
    try:
        yield mailbox
    finally:
        server.stop(no_assert=True)


def use(settings: Settings, url: str) -> None:
    """Send mail of this process to the server that the URL names."""
    environment = Environment()
    environment.ENVIRON = {"CHATAPI_EMAIL_URL": url}
    for name, value in environment.email("CHATAPI_EMAIL_URL").items():
        setattr(settings, name, value)
    settings.SENDS_EMAIL, settings.DEFAULT_FROM_EMAIL = True, "Chat API <chatapi@example.com>"
    settings.PUBLIC_URL = "https://chat.example.com"
