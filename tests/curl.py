"""curl, which a bare Debian does not have: there its tests are skipped, and the run's last lines say so. CI
always runs them.
"""

import os
import shutil

import pytest

CURL = shutil.which("curl") or "curl"
needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None and "CI" not in os.environ, reason="there is no curl on this machine"
)
