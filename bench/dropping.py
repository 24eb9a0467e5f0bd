"""Measures a request's writes beside `manage.py dropgenerations`, on SQLite or the PostgreSQL of
DATABASE_URL.

Fills an empty database, then writes requests at an even pace (admitted, claimed, settled): for some seconds
alone, then beside the command until it ends. It prints the time of all three writes of a request together.
"""

import argparse
import os
import subprocess
import sys
from tempfile import TemporaryDirectory


def main() -> None:
    """Make the database, then start a process that is configured for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=300_000)
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="chatapi-bench-") as folder:
        url = os.environ.get("DATABASE_URL", f"sqlite:///{folder}/bench.sqlite3")
        code = f"from bench.dropping_writes import measure; measure({asked.generations}, {folder!r})"
        environment = {**os.environ, "CHATAPI_STATE_DIR": folder, "DATABASE_URL": url}
        command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
