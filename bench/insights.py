"""How long the operator's reads take over many requests, on SQLite and, where DATABASE_URL is given, on that PostgreSQL (it is filled)."""

import argparse
import os
import subprocess
import sys
from tempfile import TemporaryDirectory


def main() -> None:
    """One process for each database, because Django knows one only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=1_000_000)
    generations = parser.parse_args().generations
    for url in (None, *filter(None, [os.environ.get("DATABASE_URL")])):
        with TemporaryDirectory(prefix="chatapi-bench-") as folder:
            own = {"CHATAPI_STATE_DIR": folder, "DATABASE_URL": url or f"sqlite:///{folder}/bench.sqlite3"}
            code = f"from bench.insights_reads import measure; measure({generations})"
            command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
            subprocess.run(command, env={**os.environ, **own}, check=True)


if __name__ == "__main__":
    main()
