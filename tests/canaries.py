"""Searches for words that must be nowhere: in the database, its sessions, Valkey, the metrics, the files, and
the output of the processes.
"""

import re
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from django.core.signing import b64_decode
from redis import Redis

from tests.installation import Installation


def open_valkey(installation: Installation) -> Redis:
    """Return a client of the installation's Valkey, and end the compression of its values, so that words in
    them are found.
    """
    redis = installation.open_valkey()
    redis.config_set("rdbcompression", "no")
    return redis


def database(installation: Installation) -> bytes:
    """Return all rows of all tables as text."""
    if installation.environment.get("DATABASE_URL", "").startswith("postgres"):
        import psycopg

        with psycopg.connect(installation.environment["DATABASE_URL"]) as postgres:
            tables = postgres.execute("SELECT relname FROM pg_stat_user_tables").fetchall()
            rows = [
                row for (table,) in tables for row in postgres.execute(f'SELECT t::text FROM "{table}" t')
            ]
        return repr(rows).encode()
    with closing(sqlite3.connect(installation.folder / "chatapi.sqlite3")) as sqlite:
        return "\n".join(sqlite.iterdump()).encode()


def held_by(valkey: Redis) -> bytes:
    """Return every key with its value, as in the server's file, and its logs of slow and large commands."""
    names: list[bytes] = list(valkey.scan_iter())
    client: Any = valkey
    commands = [
        repr(client.execute_command("COMMANDLOG", "GET", -1, which)).encode()
        for which in ("slow", "large-request")
    ]
    return b"\n".join([*(name + b" " + (valkey.dump(name) or b"") for name in names), *commands])


def logs(installation: Installation) -> bytes:
    """Return the output of all its processes."""
    return b"\n".join(path.read_bytes() for path in installation.folder.glob("*.log"))


def sessions(rows: bytes) -> bytes:
    """Return what the sessions among the rows hold, which Django has packed."""
    found = []
    for packed in re.findall(rb"(?<![\w-])(\.?[\w-]+):\w{6}:[\w-]{43}", rows):
        data = b64_decode(packed.lstrip(b"."))
        found.append(zlib.decompress(data) if packed.startswith(b".") else data)
    return b"\n".join(found)


def metrics(installation: Installation) -> bytes:
    """Return the metrics, if there is a token for them."""
    token = installation.environment.get("CHATAPI_METRICS_TOKEN")
    return str(installation.get("/metrics", token)[1]).encode() if token else b""


def files(installation: Installation) -> bytes:
    """Return the content of the files in the installation's folder, except its database and its logs."""
    paths = [path for path in installation.folder.rglob("*") if path.is_file()]
    return b"\n".join(
        path.read_bytes() for path in paths if ".sqlite3" not in path.name and path.suffix != ".log"
    )


def found(canaries: Sequence[bytes], installation: Installation, valkey: Redis) -> list[str]:
    """Return the places that contain any of the words."""
    rows = database(installation)
    places = {
        "database": rows,
        "sessions": sessions(rows),
        "Valkey": held_by(valkey),
        "metrics": metrics(installation),
        "files": files(installation),
        "logs": logs(installation),
    }
    return [
        f"{canary.decode()} in {name}"
        for name, content in places.items()
        for canary in canaries
        if canary in content
    ]


def is_forgotten(valkey: Redis) -> bool:
    """Return whether nothing is left of any generation or ticket."""
    kinds = {b"log", b"job", b"state", b"ticket"}
    return not any(name.split(b":")[1] in kinds for name in valkey.scan_iter())
