"""Checks the database, Redis and their clocks."""

import asyncio
import shutil
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

from django.conf import settings
from django.db import DatabaseError, connection, connections
from django.db.migrations.executor import MigrationExecutor
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from accounts.redis_sentinel import open_sentinel, sentinel_place
from accounts.redis_urls import SentinelURLs, all_redis_urls, sentinel_urls, shared_url, without_secrets
from chatapi.doctor.finding import Finding, ok, warning, wrong
from chatapi.redis_client import connect_from_thread, url_errors
from chatapi.redis_servers import stream_servers
from chatapi.serving import preflight
from usage.database import replica
from usage.database.clock import database_now
from usage.database.sql import fetch_all

MIN_REDIS_VERSION = 7
# A share of Redis' memory; beyond it, new requests may soon be refused.
FULL_SHARE = 0.8
# The room on SQLite's disk; a write-ahead log needs some MB between two checkpoints.
LITTLE_ROOM_BYTES, NO_ROOM_BYTES = 512 << 20, 16 << 20
# Nothing in the books depends on this machine's clock, but logs and certificates do.
LATE_S, VERY_LATE_S = 1.0, 60.0
# The commands that a log keeps, by the log's setting. A server without this log has no such setting.
_LOGS = {"slowlog-log-slower-than": "slow", "commandlog-request-larger-than": "large"}
_FORGET = 'Set appendonly no and save "" (README, "Production").'


# ---- the database


def check_database() -> Iterator[Finding]:
    """Yield the database's version. Raises `CannotStart`."""
    preflight.check_database()
    if connection.vendor == "sqlite":
        [[version]] = fetch_all("SELECT sqlite_version()")
        yield ok("database", f"SQLite {version} in {connection.settings_dict['NAME']}.")
        return
    [[version]] = fetch_all("SHOW server_version")
    yield ok("database", f"PostgreSQL {version} on {connection.settings_dict['HOST'] or 'a local socket'}.")


def check_database_settings() -> Iterator[Finding]:
    """Yield the settings of a PostgreSQL with which the books are not safe or requests fail or wait too
    long.
    """
    if connection.vendor == "sqlite":
        return
    if _shown("transaction_read_only") == "on":
        yield wrong(
            "database",
            "PostgreSQL is read-only, so all requests are refused.",
            "If it is a standby, use the primary's address; else set default_transaction_read_only = off.",
        )
    if _shown("fsync") == "off":
        yield wrong("database", "fsync is off: a crash can lose the books.", "Set fsync = on in PostgreSQL.")
    if _shown("synchronous_commit") == "off":
        yield wrong("database", "synchronous_commit is off: a crash loses charges.", "Set it to on.")
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    if off := ", ".join(name for name in limits if _shown(name) == "0"):
        yield warning(
            "database",
            f"CHATAPI_DATABASE_TIMEOUT_MS is not in force ({off}): a pooler drops the connection's options.",
            "Set the three limits by ALTER ROLE, as docs/operations.md shows under PgBouncer.",
        )


def check_disk() -> Iterator[Finding]:
    """Yield a warning, or worse, if the disk of SQLite is nearly full; needs no database."""
    folder = Path(connection.settings_dict["NAME"]).absolute().parent
    if connection.vendor != "sqlite" or not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    if free < LITTLE_ROOM_BYTES:
        finding = wrong if free < NO_ROOM_BYTES else warning
        text = f"The disk of {folder} has {free >> 20} MB left: once full, it refuses all requests."
        yield finding("disk", text, "Delete or move files on that disk.")


def _shown(name: str) -> str:
    return str(fetch_all(f"SHOW {name}")[0][0])


def check_replica() -> Iterator[Finding]:
    """Yield whether reports can read the replica, if there is one."""
    if replica.REPLICA not in connections.settings:
        return
    remedy = "Until then reports read the primary. Check CHATAPI_REPLICA_DATABASE_URL and the replication."
    place = connections[replica.REPLICA].settings_dict["HOST"] or "a local socket"
    try:
        lag_s = replica.measure_lag_s()
    except (DatabaseError, replica.NotAReplica) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        yield warning("replica", f"{place} can't be read: {reason}.", remedy)
        return
    if lag_s < replica.MAX_LAG_S:
        yield ok("replica", f"{place} is {lag_s:.1f} s behind.")
    else:
        yield warning("replica", f"{place} is {lag_s:.0f} s behind.", remedy)


def check_migrations() -> Iterator[Finding]:
    """Yield whether the database has the tables of this release."""
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        yield wrong("migrations", f"{len(missing)} of this release are missing.", "Run manage.py migrate.")
    elif newer := set(executor.loader.applied_migrations) - set(executor.loader.disk_migrations):
        names = ", ".join(sorted(f"{app}.{name}" for app, name in newer)[:3])
        yield warning("migrations", f"A newer release has run here ({names}).", "Run that release.")
    else:
        yield ok("migrations", "All are applied.")


# ---- Redis


def check_redis() -> Generator[Finding, None, bool]:
    """Yield the state of each Redis, and return whether all of them answer."""
    all_answer = True
    for url in all_redis_urls():
        try:
            with url_errors():
                if sentinels := sentinel_urls(url):
                    yield from _check_sentinels(sentinels)
                with connect_from_thread(url) as redis:
                    yield from _check_one(redis, _place(url))
        except RedisError as error:
            all_answer = False
            remedy = (
                "Start the service: manage.py serve runs its own Valkey."
                if settings.EMBEDDED_VALKEY
                else "Check REDIS_URL, CHATAPI_BROKER_URL and CHATAPI_STREAMS_URL."
            )
            yield wrong("Redis", f"{_place(url)} does not answer: {str(error).rstrip('.')}.", remedy)
    return all_answer


def _place(url: str) -> str:
    """Return the host and port of the URL, the path of its socket, or the name that its sentinels know."""
    if sentinels := sentinel_urls(url):
        return sentinels.name
    scheme, _, place = without_secrets(url).partition("://")
    return place if scheme == "unix" else place.partition("/")[0]


def _check_sentinels(urls: SentinelURLs) -> Iterator[Finding]:
    """Yield for each sentinel of a URL whether it knows the primary, and enough others to replace it."""
    for url in urls.sentinels:
        place = sentinel_place(url)
        try:
            with open_sentinel(url) as sentinel:
                sentinel.execute_command("SENTINEL CKQUORUM", urls.name)
            yield ok("sentinels", f"{place} knows {urls.name}, and a quorum of sentinels.")
        except NoPermissionError:
            text = f"{place} does not say whether it has a quorum."
            yield warning("sentinels", text, "Allow its user +sentinel|ckquorum.")
        except ResponseError as error:
            reason = str(error).rstrip(".")
            remedy = "Check the name behind the sentinels in the URL: it is that of `sentinel monitor`."
            if "NOQUORUM" in reason:
                remedy = f"Start the other sentinels: until then, nobody replaces a {urls.name} that dies."
            yield wrong("sentinels", f"{place} for {urls.name}: {reason}.", remedy)
        except RedisError as error:
            reason = str(error).rstrip(".")
            remedy = "Start it, or check sentinel_username and sentinel_password of the URL."
            yield warning("sentinels", f"{place} can't be asked: {reason}.", remedy)


def _check_one(redis: Redis, place: str) -> Iterator[Finding]:
    info = redis.info()
    version = str(info.get("valkey_version") or info["redis_version"])
    name = "Valkey" if "valkey_version" in info else "Redis"
    if int(version.partition(".")[0]) < MIN_REDIS_VERSION:
        yield wrong("Redis", f"{place} is {name} {version}.", f"Use {MIN_REDIS_VERSION} or newer.")
    else:
        yield ok("Redis", f"{name} {version} at {place}.")
    if info.get("redis_mode") == "cluster":
        yield wrong("Redis", f"{place} is a cluster, which is not supported.", "Use a single server.")
    if info.get("role") == "slave":
        yield wrong("Redis", f"{place} is a replica, which refuses to write.", "Use the primary's address.")
    yield from _check_memory(info, place)
    yield from _check_persistence(redis, info, place)


def _check_memory(info: dict[str, Any], place: str) -> Iterator[Finding]:
    policy, most = info.get("maxmemory_policy"), int(info.get("maxmemory", 0))
    if policy != "noeviction":
        yield wrong(
            "Redis policy",
            f"{place} has maxmemory-policy {policy}: a full Redis drops accepted requests.",
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration.",
        )
    elif not most:
        yield warning(
            "Redis policy",
            f"{place} has no maxmemory: it can take all memory of its machine.",
            "Set maxmemory (512mb is enough for most); a full Redis then refuses new requests.",
        )
    elif info["used_memory"] > FULL_SHARE * most:
        share = f"{info['used_memory'] / most:.0%}"
        yield warning("Redis policy", f"{place} uses {share} of its maxmemory.", "Raise maxmemory.")
    else:
        yield ok("Redis policy", f"noeviction, {info['used_memory'] / most:.0%} of maxmemory used.")


def _check_persistence(redis: Redis, info: dict[str, Any], place: str) -> Iterator[Finding]:
    """Yield whether prompts and answers are kept outside of memory, or the disk refuses to write."""
    try:
        known = cast(dict[str, str], redis.config_get("save", *_LOGS))
    except RedisError:  # hosted ones forbid CONFIG
        known = {}
    if info.get("rdb_last_bgsave_status") == "err" and known.get("save"):
        yield wrong("Redis files", f"{place} can't write its file, and so refuses to write.", _FORGET)
    elif info.get("aof_enabled") or known.get("save"):
        yield warning("Redis files", f"{place} writes prompts and answers to its disk.", _FORGET)
    elif not known:
        yield warning("Redis files", f"{place} does not show its configuration.", f"Check it: {_FORGET}")
    else:
        yield ok("Redis files", "Prompts and answers are in memory only.")
    for name, kind in _LOGS.items():
        if known.get(name, "-1") != "-1":
            yield warning(
                "Redis files",
                f"{place} keeps {kind} commands, with prompts, in a log.",
                f"CONFIG SET {name} -1, and the same in its configuration.",
            )


def check_processes() -> Finding:
    """Return whether workers are connected to every streams server, and how many.

    Raises `StreamUnavailable`.
    """
    connected = asyncio.run(_connected_workers())
    workers = set().union(*connected)
    # Web processes are not counted: one that has had no request yet is not connected.
    if not workers:
        return warning("processes", "No worker is connected.", "Start manage.py serve --only worker.")
    if any(each != workers for each in connected):
        text = "Not every worker is connected to every server of CHATAPI_STREAMS_URL."
        return warning("processes", text, "Give all workers the same list, and restart those with another.")
    return ok("processes", f"{len(workers)} worker{'s' if len(workers) > 1 else ''} connected.")


def connected_workers() -> set[str]:
    """Return the names of the workers that run. Raises `StreamUnavailable`."""
    return set().union(*asyncio.run(_connected_workers()))


async def _connected_workers() -> list[set[str]]:
    """Return the names of the workers that are connected to each server."""
    async with stream_servers() as servers:
        return [await each.connected_workers() for each in servers]


# ---- clocks


def check_database_clock() -> Finding:
    """Return how far the database's clock is from this machine's."""
    before = time.time()
    remote = database_now().timestamp()
    return _clock("the database", remote, before)


def check_redis_clock() -> Finding:
    """Return how far the clock of Redis is from this machine's. Raises `RedisError`."""
    with connect_from_thread(shared_url()) as redis:
        redis.ping()  # connected: the next round trip takes no longer than it must
        before = time.time()
        seconds, microseconds = cast(tuple[int, int], redis.time())
    return _clock("Redis", seconds + microseconds / 1_000_000, before)


def _clock(name: str, remote_s: float, before_s: float) -> Finding:
    # The remote clock was read at some moment of the round trip: only what exceeds that is a difference.
    after_s = time.time()
    late_s = max(before_s - remote_s, remote_s - after_s, 0.0)
    text = f"The clocks of {name} and of this machine differ by {late_s:.1f} s."
    if late_s <= LATE_S:
        return ok("clocks", text)
    make = wrong if late_s > VERY_LATE_S else warning
    return make("clocks", text, "Run a time service (chrony, systemd-timesyncd) on both.")
