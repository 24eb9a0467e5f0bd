"""A real OpenID Connect provider behind TLS, in a process of its own, and a browser that signs in there."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from django.urls import reverse
from django.utils import timezone

from accounts.models import Organization
from accounts.sign_in.models import EmailDomain, IdentityProvider
from tests.installation import free_port
from tests.server_process import running

SERVE = """
import sys
import flask
import oidc_provider_mock
from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import run_simple
port, certificate, key = sys.argv[1:]
app = oidc_provider_mock.app(require_client_registration=True)
# The issuer's name has the path of the realm.
app.request_class = type("Request", (flask.Request,), {"host_url": property(lambda self: self.root_url)})
# The second one is for paths with two slashes, which most servers take for others.
realms = DispatcherMiddleware(app, {"/realms/acme": app, "/realms/acme/": NotFound()})
run_simple("localhost", int(port), realms, threaded=True, ssl_context=(certificate, key))
"""


class Provider:
    """The provider's issuer, its certificate and its people."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key, self.log = (folder / f"provider.{end}" for end in ("pem", "key", "log"))
        words = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ]
        words += [
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            str(self.key),
        ]
        subprocess.run(["openssl", *words, "-out", str(self.certificate)], check=True, capture_output=True)
        self.port = free_port()
        self.issuer = f"https://localhost:{self.port}"

    @contextmanager
    def running(self) -> Iterator["Provider"]:
        """Serve until the end of the block."""
        command = [sys.executable, "-W", "ignore", "-c", SERVE, str(self.port)]
        with running([*command, str(self.certificate), str(self.key)], self._answers, self.log):
            yield self

    def _answers(self) -> bool:
        try:
            return requests.get(self.issuer, verify=str(self.certificate), timeout=5).ok
        except requests.ConnectionError:
            return False

    def register(self, callback: str) -> tuple[str, str]:
        """Register a client that may send people back to this URL; return its id and its secret."""
        # The provider's description leaves out how a client sends its secret; django-allauth then posts it.
        client = {"redirect_uris": [callback], "token_endpoint_auth_method": "client_secret_post"}
        answer = requests.post(
            f"{self.issuer}/oauth2/clients", json=client, verify=str(self.certificate), timeout=10
        )
        answer.raise_for_status()
        made = answer.json()
        return made["client_id"], made["client_secret"]

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


def offer(organization: Organization, provider: Provider, domain: str, **changes: Any) -> IdentityProvider:
    """Let the organization's people of an approved domain sign in at the provider."""
    EmailDomain.objects.create(organization=organization, domain=domain, approved_at=timezone.now())
    callback = reverse("openid_connect_callback", args=[organization.pk])
    client_id, secret = provider.register(f"http://testserver{callback}")
    row = IdentityProvider(organization=organization, issuer=provider.issuer, client_id=client_id, **changes)
    row.enter_secret(secret)
    row.save()
    return row
