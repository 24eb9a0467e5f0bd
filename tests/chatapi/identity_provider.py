"""A real OpenID Connect provider behind TLS, in a thread, and a browser that signs in there."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import oidc_provider_mock
import requests
from werkzeug.serving import make_server


class Provider:
    """The provider's issuer, its certificate and its people."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "provider.pem", folder / "provider.key"
        words = (
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost".split()
        )
        words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(self.key)]
        subprocess.run(["openssl", *words, "-out", str(self.certificate)], check=True, capture_output=True)
        self.issuer = ""

    @contextmanager
    def running(self) -> Iterator["Provider"]:
        """Serve until the end of the block."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        server = make_server("localhost", 0, oidc_provider_mock.app(), threaded=True, ssl_context=context)
        self.issuer = f"https://localhost:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()

    def knows(self, sub: str, **claims: Any) -> None:
        """Give the provider a person."""
        answer = requests.put(
            f"{self.issuer}/users/{sub}", json=claims, verify=str(self.certificate), timeout=10
        )
        answer.raise_for_status()

    def authorize(self, url: str, sub: str) -> str:
        """Sign in at the provider as a browser does; return the path and query to which it sends us back."""
        answer = requests.post(
            url, data={"sub": sub}, verify=str(self.certificate), timeout=10, allow_redirects=False
        )
        assert answer.status_code == 302, answer.text
        back = urlsplit(answer.headers["location"])
        return f"{back.path}?{back.query}"
