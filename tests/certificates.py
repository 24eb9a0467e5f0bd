"""Certificates for tests of TLS."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> Path:
    """Make a certificate of 127.0.0.1, with its key beside it."""
    key, made = folder / "key", folder / "certificate"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", *words, "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made
