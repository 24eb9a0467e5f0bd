"""A mail server that takes mail only by STARTTLS and with a password, and keeps it in a Maildir.

python3 mail_server.py CERTIFICATE KEY USER PASSWORD MAILDIR
"""

import ssl
import sys
import threading
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Mailbox
from aiosmtpd.smtp import AuthResult

certificate, key, user, password, folder = sys.argv[1:]


def authenticate(_: Any, __: Any, ___: Any, ____: str, given: Any) -> AuthResult:
    return AuthResult(success=(given.login, given.password) == (user.encode(), password.encode()))


context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(certificate, key)
server = Controller(
    Mailbox(Path(folder)),
    hostname="127.0.0.1",
    port=587,
    tls_context=context,
    require_starttls=True,
    auth_required=True,
    authenticator=authenticate,
)
server.start()
threading.Event().wait()
