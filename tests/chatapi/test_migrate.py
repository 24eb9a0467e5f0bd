"""A migration may compute for longer than `CHATAPI_DATABASE_TIMEOUT_MS` between two statements."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection

from tests.installation import ROOT

pytestmark = [
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no such time limit"),
    pytest.mark.django_db(transaction=True),
]
TIMEOUT_S = 0.5
MIGRATION = f"""
import time
from django.db import migrations


def compute(apps, schema_editor):
    schema_editor.execute("SELECT 1")
    time.sleep({3 * TIMEOUT_S})
    schema_editor.execute("SELECT 1")


class Migration(migrations.Migration):
    operations = [migrations.RunPython(compute, compute)]
"""
SETTINGS = """
from chatapi.settings import *

INSTALLED_APPS += ["slow"]
"""
SHOWN = """
from django.core.management import call_command
from django.db import connection

call_command("migrate", "slow", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("SHOW idle_in_transaction_session_timeout")
    print(cursor.fetchone()[0])
call_command("migrate", "slow", "zero", verbosity=0)
"""


def test_a_slow_migration_is_not_ended_and_the_limit_is_back_afterwards(tmp_path: Path) -> None:
    (tmp_path / "slow" / "migrations").mkdir(parents=True)
    for name in ("__init__.py", "migrations/__init__.py"):
        (tmp_path / "slow" / name).touch()
    (tmp_path / "slow" / "migrations" / "0001_initial.py").write_text(MIGRATION)
    (tmp_path / "slow_settings.py").write_text(SETTINGS)
    own = connection.settings_dict
    url = f"postgres://{own['USER']}:{quote(own['PASSWORD'])}@{own['HOST']}:{own['PORT']}/{own['NAME']}"
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", SHOWN],
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": str(tmp_path),
            "DJANGO_SETTINGS_MODULE": "slow_settings",
            "DATABASE_URL": url,
            "CHATAPI_STATE_DIR": str(tmp_path),
            "CHATAPI_DATABASE_TIMEOUT_MS": str(round(TIMEOUT_S * 1_000)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "500ms\n"), done.stderr
