"""Runs a measurement on SQLite and, where DATABASE_URL is given, on that PostgreSQL (it is filled)."""

import argparse
import os
import subprocess
import sys
from tempfile import TemporaryDirectory


def main(description: str | None, option: str, module: str, *sizes: int) -> None:
    """Run the command line: call `measure(*sizes, size)` of the module, where `size` is the option's value.

    Each database has a process, because Django is configured for one only. Exit status 1 if a `measure`
    returns False or fails.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(option, dest="size", type=int, default=1_000_000)
    parser.add_argument(
        "--only",
        choices=["sqlite", "postgresql"],
        help="one of them (default: both, if there is a DATABASE_URL)",
    )
    options = parser.parse_args()
    urls = {"sqlite": None, "postgresql": os.environ.get("DATABASE_URL")}
    if options.only == "postgresql" and not urls["postgresql"]:
        parser.error("--only postgresql needs a DATABASE_URL")
    arguments = ", ".join(map(str, (*sizes, options.size)))
    code = f"import sys; from {module} import measure; sys.exit(not measure({arguments}))"
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    statuses = []
    for name, url in urls.items():
        if options.only in (None, name) and (name == "sqlite" or url):
            with TemporaryDirectory(prefix="chatapi-bench-") as folder:
                environment = {
                    **os.environ,
                    "CHATAPI_STATE_DIR": folder,
                    "DATABASE_URL": url or f"sqlite:///{folder}/bench.sqlite3",
                }
                statuses.append(subprocess.run(command, env=environment, check=False).returncode)
    sys.exit(any(statuses))
