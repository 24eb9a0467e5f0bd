"""Certificates of authorities and of clients, and the headers in which proxies pass them on."""

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.installation import Installation

HEADER = "client-cert"
PROXY = "10.0.0.1"
SETTINGS = """
from django.conf import settings
settings.CLIENT_CERTIFICATE_HEADER, settings.TRUSTED_PROXIES = "client-cert", ["127.0.0.1"]
"""
"""The settings of a service behind a proxy, for code in a shell without them."""
_MAKE = """
import json
from accounts import certificates
from accounts.keys import create_key, get_or_create_project
project = get_or_create_project("Certified", "default")
row = certificates.create(project.organization_id, {pem!r})
certificates.activate(project.organization_id, [row], project)
print(json.dumps(create_key(project, name="certified")[1]))
"""
_NO_USAGE = dict.fromkeys(
    (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    ),
    False,
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: Any

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write(self, folder: Path) -> list[str]:
        """Write the certificate and its key to files, and return curl's arguments that name them."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "client.pem").write_text(self.pem)
        (folder / "client.key").write_bytes(key)
        return ["--cert", str(folder / "client.pem"), "--key", str(folder / "client.key")]

    @property
    def header(self) -> str:
        """Return the header of RFC 9440."""
        return f":{base64.b64encode(self.certificate.public_bytes(Encoding.DER)).decode()}:"

    @property
    def escaped(self) -> str:
        """Return the header that nginx writes from `$ssl_client_escaped_cert`."""
        return quote(self.pem, safe="")

    def issue(self, *, days: tuple[int, int] = (-1, 30), usage: Any = None, **extensions: Any) -> "Made":
        """Return a certificate of a client, which is valid between these days from now."""
        usage = usage or x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        return make("client", self, days=days, usage=usage, **extensions)


def make(
    name: str,
    issuer: Made | None = None,
    *,
    days: tuple[int, int] = (-1, 300),
    key: Any = None,
    public: Any = None,
    usage: Any = None,
    critical: Collection[str] = ("basic", "key_usage"),
    **extensions: Any,
) -> Made:
    """Return a certificate, by default of an authority that has issued it itself. `public` replaces its
    public key, and `extensions` those of the same name; None leaves one out.
    """
    key, now, is_ca = key or ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC), usage is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    above = issuer.certificate.subject if issuer else subject
    signing: Any = issuer.key if issuer else key
    used = {"key_cert_sign", "crl_sign"} if is_ca else {"digital_signature"}
    found = {
        "basic": x509.BasicConstraints(ca=is_ca, path_length=None),
        "subject_key": x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        "authority_key": x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
        "key_usage": x509.KeyUsage(**_NO_USAGE | dict.fromkeys(used, True)),
        "usage": usage,
    } | extensions
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(above)
    builder = builder.public_key(public or key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now + timedelta(days=days[0]))
    builder = builder.not_valid_after(now + timedelta(days=days[1]))
    for kind, value in found.items():
        if value is not None:
            builder = builder.add_extension(value, critical=kind in critical)
    return Made(builder.sign(signing, None if hasattr(key, "private_bytes_raw") else hashes.SHA256()), key)


def make_key(installation: Installation, authority: Made) -> str:
    """Return a key of a new project for which the authority's certificate is active."""
    return str(json.loads(installation.shell(SETTINGS + _MAKE.format(pem=authority.pem))))
