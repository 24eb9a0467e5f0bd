"""Skips the tests of curl where it is not installed, as on a bare Debian. CI always runs them."""

import os
import shutil

import pytest

CURL = shutil.which("curl") or "curl"
needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None and "CI" not in os.environ, reason="there is no curl on this machine"
)
