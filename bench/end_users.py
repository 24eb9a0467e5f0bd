"""How long an admission, a page and a report take with few end users and with very many, on SQLite and, where
DATABASE_URL is given, on that PostgreSQL (it is filled).

Exit status 1: a page or a route took longer than a second (the median of three), or failed.
"""

import argparse
import os
import subprocess
import sys
from tempfile import TemporaryDirectory

FEW = 100


def main() -> None:
    """Run one process for each database, because Django knows one only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--end-users", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgresql"], help="one of them (default: both)")
    asked = parser.parse_args()
    are_within = []
    for name, url in {"sqlite": None, "postgresql": os.environ.get("DATABASE_URL")}.items():
        if asked.only in (None, name) and (name == "sqlite" or url):
            with TemporaryDirectory(prefix="chatapi-bench-") as folder:
                database = url or f"sqlite:///{folder}/bench.sqlite3"
                own = {"CHATAPI_STATE_DIR": folder, "DATABASE_URL": database}
                are_within.append(_run(asked.end_users, own))
    sys.exit(0 if all(are_within) else 1)


def _run(end_users: int, own: dict[str, str]) -> bool:
    """Return whether every page and route was within the bound."""
    measure = f"measure({FEW}, {end_users})"
    code = f"import sys; from bench.end_users_reads import measure; sys.exit(not {measure})"
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    return subprocess.run(command, env={**os.environ, **own}, check=False).returncode == 0


if __name__ == "__main__":
    main()
