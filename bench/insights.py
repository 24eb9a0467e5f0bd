"""How long pages and reports take over many requests, on SQLite and, where DATABASE_URL is given, on that PostgreSQL (it is filled)."""

import argparse
import os
import subprocess
import sys
from tempfile import TemporaryDirectory


def main() -> None:
    """One process for each database, because Django knows one only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgresql"], help="one of them (default: both, if there is a DATABASE_URL)")
    asked = parser.parse_args()
    urls = {"sqlite": None, "postgresql": os.environ.get("DATABASE_URL")}
    for name, url in urls.items():
        if asked.only in (None, name) and (name == "sqlite" or url):
            with TemporaryDirectory(prefix="chatapi-bench-") as folder:
                _run(asked.generations, {"CHATAPI_STATE_DIR": folder, "DATABASE_URL": url or f"sqlite:///{folder}/bench.sqlite3"})


def _run(generations: int, own: dict[str, str]) -> None:
    code = f"from bench.insights_reads import measure; measure({generations})"
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    subprocess.run(command, env={**os.environ, **own}, check=True)


if __name__ == "__main__":
    main()
