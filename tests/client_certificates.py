"""Certificates of authorities and of clients, and the headers in which proxies pass them on."""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HEADER = "client-cert"
PROXY = "10.0.0.1"
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
    usage: Any = None,
    **extensions: Any,
) -> Made:
    """Return a certificate, by default of an authority that has issued it itself. `extensions` replace those
    of the same name; None leaves one out.
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
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now + timedelta(days=days[0]))
    builder = builder.not_valid_after(now + timedelta(days=days[1]))
    for kind, value in found.items():
        if value is not None:
            builder = builder.add_extension(value, critical=kind in {"basic", "key_usage"})
    return Made(builder.sign(signing, None if hasattr(key, "private_bytes_raw") else hashes.SHA256()), key)
