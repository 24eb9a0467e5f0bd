"""A certificate authority that this machine trusts, for the servers of other examples."""

from pathlib import Path

from by_hand.machine import append, run

CERTIFICATE = Path("/usr/local/share/ca-certificates/by-hand.crt")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
FOLDER = Path("/etc/ssl/by-hand")
"""The folder of the authority's key, and of the servers' certificates."""


def make_server_certificate(host: str) -> tuple[Path, Path]:
    """Name this machine `host`, and return a certificate of that name and its key."""
    if not CERTIFICATE.exists():
        # The file of all authorities may have one that is not Debian's: that of the package index.
        before = BUNDLE.read_text()
        run(
            f"mkdir -p {FOLDER} && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=by-hand "
            f"-keyout {FOLDER}/authority.key -out {CERTIFICATE} && update-ca-certificates"
        )
        append(BUNDLE, before)
    certificate, key = FOLDER / f"{host}.pem", FOLDER / f"{host}.key"
    run(
        f"openssl req -newkey rsa:2048 -nodes -subj /CN={host} -keyout {key} -out {FOLDER}/request && "
        f"printf 'subjectAltName=DNS:{host}' > {FOLDER}/names && "
        f"openssl x509 -req -days 2 -in {FOLDER}/request -CA {CERTIFICATE} -CAkey {FOLDER}/authority.key "
        f"-CAcreateserial -extfile {FOLDER}/names -out {certificate}"
    )
    run(f"echo '127.0.0.1 {host}' >> /etc/hosts")
    return certificate, key
