"""Client certificates (mutual TLS): reads them from a proxy's header, and verifies who has issued them.

The client has proven to the proxy that it has the certificate's private key; here is only decided whether the
certificate counts. `cryptography.x509` is imported when it is first needed: it takes 0.1 s and 7 MB.
"""

import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from accounts.errors import CertificateRefused

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from cryptography.x509.verification import PolicyBuilder

MAX_BYTES = 16_384
"""Of one certificate as PEM."""
# A header has it escaped: each line break, `+`, `/` and `=` takes three characters.
_MAX_CHARS: Final = 2 * MAX_BYTES
# Weaker ones `cryptography` refuses, and Ed25519, as browsers' rules do not know it.
_LEAST_RSA_BITS: Final = 2_048
# Larger ones, and exponents above 2**32, would make each verification long: it blocks the event loop.
_MOST_RSA_BITS: Final = 8_192
_CURVES: Final = {"secp256r1", "secp384r1", "secp521r1"}
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_END: Final = b"-----END CERTIFICATE-----"
_VERIFIED_S: Final = 60
_MAX_VERIFIED: Final = 10_000
# Headers without a certificate: none, an empty one in RFC 9440's form, and that of Caddy, which leaves a
# placeholder without a value as it is.
_NOTHING: Final = ("", "::", ":{http.request.tls.client.certificate_der_base64}:")
_NOT_RECEIVED = (
    "this request did not come through a proxy that passes on certificates. If you sent one, the operator of "
    "the service has to set CHATAPI_CLIENT_CERTIFICATE_HEADER and CHATAPI_TRUSTED_PROXIES."
)
_MISSING = "none was sent. Send one when the connection begins (TLS)."
_UNREADABLE = "what the proxy passed on is not one X.509 certificate."
_EXPIRED = "the one that was sent has expired."
_NOT_YET_VALID = "the one that was sent is not valid yet."
_UNKNOWN = (
    "no active certificate that is valid now has issued the one that was sent, or this one is not for client "
    "authentication."
)
# By the digest of a header and by the authorities: when it has to be verified again (`time.time`).
_verified: OrderedDict[tuple[bytes, tuple[Any, ...]], float] = OrderedDict()


def require(api_key_id: int, sent: str | None, authorities: "tuple[Certificate, ...]") -> None:
    """Raise `CertificateRefused` unless one of the authorities has issued the certificate that was sent.

    `sent` is what `forwarding.client_certificate` returns.
    """
    if sent is None or sent in _NOTHING:
        raise CertificateRefused(api_key_id, _NOT_RECEIVED if sent is None else _MISSING)
    now = time.time()
    known = hashlib.sha256(sent.encode()).digest(), authorities
    if now < _verified.get(known, 0):
        return
    try:
        certificate = read(sent)
    except ValueError:
        raise CertificateRefused(api_key_id, _UNREADABLE) from None
    if now >= certificate.not_valid_after_utc.timestamp():
        raise CertificateRefused(api_key_id, _EXPIRED)
    if now < certificate.not_valid_before_utc.timestamp():
        raise CertificateRefused(api_key_id, _NOT_YET_VALID)
    try:
        _verified[known] = min(now + _VERIFIED_S, _verify(certificate, authorities, datetime.now(UTC)))
    except ValueError:
        raise CertificateRefused(api_key_id, _UNKNOWN) from None
    while len(_verified) > _MAX_VERIFIED:
        _verified.popitem(last=False)


def read(header: str) -> "Certificate":
    """Return the certificate in a header of RFC 9440, or in one with escaped PEM, as nginx writes it.

    Raises `ValueError`.
    """
    if len(header) > _MAX_CHARS:
        raise ValueError("too long")
    if not header.startswith(":"):
        text = unquote_to_bytes(header).strip()
        if not (text.startswith(_BEGIN) and text.endswith(_END)):
            raise ValueError("not only a certificate")
        return of_pem(text)
    if not header.endswith(":"):
        raise ValueError("no byte sequence of RFC 8941")
    return _loaded("load_der_x509_certificate", base64.b64decode(header[1:-1], validate=True))


def of_pem(text: bytes) -> "Certificate":
    """Return the only certificate in the text. Raises `ValueError`, also for a private key beside it."""
    if text.count(b"-----BEGIN ") != 1:
        raise ValueError("not one object")
    return _loaded("load_pem_x509_certificate", text)


@lru_cache(1_000)
def authority(content: str) -> "Certificate":
    """Return the certificate of a row; keys of an organization share it."""
    return of_pem(content.encode())


def fault_of_authority(certificate: "Certificate") -> str:
    """Return why no certificate that this one issues could be accepted; empty if it can issue some."""
    from cryptography import x509  # noqa: PLC0415

    extensions = {each.oid: each.value for each in certificate.extensions}
    constraints = extensions.get(x509.BasicConstraints.oid)
    usage = extensions.get(x509.KeyUsage.oid)
    if not (isinstance(constraints, x509.BasicConstraints) and constraints.ca):
        return "This is no certificate of an authority: its basic constraints do not say CA:TRUE."
    if not (isinstance(usage, x509.KeyUsage) and usage.key_cert_sign):
        return "The key usage of this certificate has to include keyCertSign."
    if x509.SubjectKeyIdentifier.oid not in extensions:
        return (
            "This certificate has no subject key identifier, which names the authority in its certificates."
        )
    if not _has_usable_key(certificate):
        return (
            "The key of this certificate has to be RSA of 2048 to 8192 bits, with an exponent below 2**32, "
            "or ECDSA of P-256, P-384 or P-521."
        )
    reason = _refusal_of_issued(certificate)
    return f"No client certificate that this one issues could be accepted: {reason}." if reason else ""


def _has_usable_key(certificate: "Certificate") -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415

    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False
    if isinstance(key, rsa.RSAPublicKey):
        return _LEAST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS and key.public_numbers().e < 2**32
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES


def _refusal_of_issued(authority: "Certificate") -> str:
    """Return why a client certificate in the authority's name is refused, besides for its signature, which is
    not the authority's here; empty if that is the only reason.
    """
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    key, begins_at = ec.generate_private_key(ec.SECP256R1()), authority.not_valid_before_utc
    of_authority = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = x509.CertificateBuilder(
        issuer_name=authority.subject,
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
    )
    for extension in (
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(of_authority),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
    ):
        builder = builder.add_extension(extension, critical=False)
    try:
        builder = builder.not_valid_before(begins_at).not_valid_after(begins_at + timedelta(days=1))
        _verify(builder.sign(key, hashes.SHA256()), [authority], begins_at)
    except ValueError as error:
        reason = str(error).partition(" (encountered")[0].rpartition(": candidates exhausted: ")[2]
        return "" if reason == "signature does not match" else reason.removeprefix("validation failed: ")
    return ""


def pem(certificate: "Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return certificate.public_bytes(Encoding.PEM).decode()


def fingerprint(certificate: "Certificate") -> str:
    """Return the SHA-256 of the certificate, in hexadecimal digits."""
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def _loaded(load: str, data: bytes) -> "Certificate":
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415

    try:
        found: Certificate = getattr(x509, load)(data)
        # Its dates and its extensions are parsed only now.
        _ = found.not_valid_after_utc, found.not_valid_before_utc, list(found.extensions)
    except (
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
        UnsupportedAlgorithm,
    ) as error:
        raise ValueError(str(error)) from None
    return found


def _verify(certificate: "Certificate", authorities: "Sequence[Certificate]", at: datetime) -> float:
    """Return until when the certificate and its authority are valid (`time.time`). Raises `ValueError` unless
    the authority has issued the certificate and both are valid at this time.
    """
    from cryptography.x509.verification import Store, VerificationError  # noqa: PLC0415

    verifier = _policy().store(Store(list(authorities))).time(at).build_client_verifier()
    try:
        chain = verifier.verify(certificate, []).chain
    except VerificationError as error:
        raise ValueError(str(error)) from None
    return min(each.not_valid_after_utc.timestamp() for each in chain)


@cache
def _policy() -> "PolicyBuilder":
    """Return RFC 5280's rules, as browsers narrow them, for a client directly below its authority.

    A client needs no alternative name, but has to say that it is for client authentication.
    """
    from cryptography import x509  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415
    from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder  # noqa: PLC0415

    def is_for_clients(_: Any, __: Any, usage: x509.ExtendedKeyUsage | None) -> None:
        if usage is None or ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            raise ValueError("not for client authentication")

    client = ExtensionPolicy.webpki_defaults_ee()
    client = client.may_be_present(x509.SubjectAlternativeName, Criticality.AGNOSTIC, None)
    client = client.require_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, is_for_clients)
    authority = ExtensionPolicy.webpki_defaults_ca()
    return PolicyBuilder().max_chain_depth(0).extension_policies(ca_policy=authority, ee_policy=client)
