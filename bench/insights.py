"""How long pages and reports take over many requests, on SQLite and, where DATABASE_URL is given, on that
PostgreSQL (it is filled).

Exit status 1: a page or a route took longer than a second (the median of three), asked more than 12 queries,
weighed more than 150 kB, or failed.
"""

import argparse
import os
import subprocess
import sys
from tempfile import TemporaryDirectory


def main() -> None:
    """Run one process for each database, because Django is configured for one only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=1_000_000)
    parser.add_argument(
        "--only",
        choices=["sqlite", "postgresql"],
        help="one of them (default: both, if there is a DATABASE_URL)",
    )
    asked = parser.parse_args()
    are_within = []
    urls = {"sqlite": None, "postgresql": os.environ.get("DATABASE_URL")}
    for name, url in urls.items():
        if asked.only in (None, name) and (name == "sqlite" or url):
            with TemporaryDirectory(prefix="chatapi-bench-") as folder:
                are_within.append(
                    _run(
                        asked.generations,
                        {
                            "CHATAPI_STATE_DIR": folder,
                            "DATABASE_URL": url or f"sqlite:///{folder}/bench.sqlite3",
                        },
                    )
                )
    sys.exit(0 if all(are_within) else 1)


def _run(generations: int, own: dict[str, str]) -> bool:
    """Return whether every page and route was within the bounds."""
    code = f"import sys; from bench.insights_reads import measure; sys.exit(not measure({generations}))"
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    return subprocess.run(command, env={**os.environ, **own}, check=False).returncode == 0


if __name__ == "__main__":
    main()
