"""A real browser before a real installation. Collected with `CHATAPI_BROWSER_TESTS=1` only: then Chromium must be there.

CHATAPI_BROWSER_TESTS=1 .venv/bin/pytest tests/browser
"""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.installation import Installation

IS_WANTED = os.environ.get("CHATAPI_BROWSER_TESTS") == "1"
collect_ignore_glob = [] if IS_WANTED else ["test_*.py"]
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
if IS_WANTED and CHROMIUM is None:
    raise pytest.UsageError("CHATAPI_BROWSER_TESTS=1, but there is no Chromium: apt-get install chromium-headless-shell")

PASSWORD = "operator-passphrase"
OPERATOR = f"""
from django.contrib.auth.models import User
User.objects.create_superuser("operator", password="{PASSWORD}")
"""


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Valkey, web and worker, and an operator who may do everything; its books must be right in the end."""
    installation = Installation(tmp_path_factory.mktemp("browser"))
    try:
        installation.start({})
        made = installation.manage("shell", "--no-imports", "-c", OPERATOR)
        assert made.returncode == 0, made.stderr
        yield installation
        installation.verify()
    finally:
        installation.stop()
