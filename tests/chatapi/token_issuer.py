"""A real issuer of programs' tokens behind TLS, like a Kubernetes cluster, and the request of an exchange."""

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from django.test import Client
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from accounts.models import APIKey, FederationRule, ServiceAccount
from accounts.workload_identity import federation

AUDIENCE = "https://chat.example.com"
SUBJECT = "system:serviceaccount:shop:backend"
RSA, EC, ED = (
    rsa.generate_private_key(65_537, 2_048),
    ec.generate_private_key(ec.SECP256R1()),
    ed25519.Ed25519PrivateKey.generate(),
)
OTHER_RSA = rsa.generate_private_key(65_537, 2_048)


def jwk(key: Any, kid: str, **members: Any) -> dict[str, Any]:
    """Return the public key."""
    kind: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    kind = OKPAlgorithm if isinstance(key, ed25519.Ed25519PrivateKey) else kind
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, **members}


class Issuer:
    """The issuer's keys, and how often they were fetched."""

    def __init__(self, url: str = "https://issuer.example.com") -> None:
        self.url = url
        self.named_issuer = url
        self.keys = [jwk(RSA, "rsa", alg="RS256", use="sig"), jwk(EC, "ec"), jwk(ED, "ed")]
        self.paths: list[str] = []
        self.is_broken = False
        self._may_answer = Event()
        self._may_answer.set()

    @property
    def jwks(self) -> dict[str, Any]:
        return {"keys": self.keys}

    def token(self, key: Any = RSA, kid: str | None = "rsa", alg: str = "RS256", **claims: Any) -> str:
        """Return a token for five minutes; a claim that is None is left out."""
        now = int(time.time())
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": SUBJECT, "iat": now, "nbf": now, "exp": now + 300}
        sent = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(sent, key, alg, headers={} if kid is None else {"kid": kid})

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Answer nothing until the end of the block."""
        self._may_answer.clear()
        try:
            yield
        finally:
            self._may_answer.set()

    @contextmanager
    def running(self, certificate: Path) -> Iterator["Issuer"]:
        """Serve the description and the keys until the end of the block."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.paths.append(self.path)
                issuer._may_answer.wait(30)
                answers = {
                    "/.well-known/openid-configuration": {
                        "issuer": issuer.named_issuer,
                        "jwks_uri": f"{issuer.url}/keys",
                    },
                    "/keys": issuer.jwks,
                }
                body = json.dumps(answers.get(self.path)).encode()
                self.send_response(500 if issuer.is_broken else 200 if self.path in answers else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.parent / "key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        self.url = self.named_issuer = f"https://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def exchange_body(provider_id: str, account_id: str, token: str, **changes: Any) -> dict[str, Any]:
    """Return what OpenAI's SDK sends."""
    return {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "identity_provider_id": provider_id,
        "service_account_id": account_id,
    } | changes


def post_exchange(body: Any, content_type: str = "application/json", **extra: Any) -> Any:
    """Return the answer to a request without any key."""
    return Client().post("/oauth/token", body, content_type=content_type, **extra)


def make_rule(account: ServiceAccount, name: str = "made") -> FederationRule:
    """Return a rule of a new provider for the service account."""
    provider = federation.create(
        account.project.organization_id, name=name, issuer="https://issuer.example.com", audience=AUDIENCE
    )
    return federation.create_rule(
        provider, account, key=APIKey(), name=name, attribute_matchers={"sub": SUBJECT}
    )
