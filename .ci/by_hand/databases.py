"""docs/operations.md and docs/backup.md: PgBouncer, a backup and its restoration, a replica."""

import re
from pathlib import Path

from by_hand.clients import NGINX, load, signed_in, stream
from by_hand.documents import BACKUP, OPERATIONS
from by_hand.machine import PASSWORD, append, expect, replace_once, run, wait_for
from by_hand.processes import (
    SETTINGS,
    doctor,
    restart_webs,
    restart_workers,
    run_with_settings,
    wait_for_processes,
)

DIRECT = f"postgres://chatapi:{PASSWORD}@127.0.0.1:5432/"
"""The URL of PostgreSQL itself, also when the processes use PgBouncer."""


def set_up_pgbouncer() -> None:
    """Put PgBouncer between the processes and PostgreSQL."""
    run(OPERATIONS.quoted("apt-get install pgbouncer"), online=True)
    append("/etc/pgbouncer/pgbouncer.ini", OPERATIONS.block("pool_mode = transaction"))
    users = Path("/etc/pgbouncer/userlist.txt")
    users.write_text(OPERATIONS.quoted('"chatapi" "PASSWORD"').replace("PASSWORD", PASSWORD) + "\n")
    run(f"chown postgres {users}")
    add_to_pgbouncer("chatapi")
    set_limits("chatapi")
    console = OPERATIONS.quoted("runuser -u postgres -- psql -p 6432 -U pgbouncer pgbouncer -c RECONNECT")
    run(console)
    SETTINGS.write_text(replace_once(SETTINGS.read_text(), ":5432/", ":6432/"))
    with load():
        restart_workers()
        restart_webs()
    expect("chatapi", run(console.replace("RECONNECT", "'SHOW SERVERS'")))
    doctor()


def add_to_pgbouncer(database: str) -> None:
    """Let PgBouncer serve a database."""
    file = Path("/etc/pgbouncer/pgbouncer.ini")
    line = re.sub("^chatapi", database, OPERATIONS.block("chatapi = host=127.0.0.1 port=5432"))
    file.write_text(replace_once(file.read_text(), "\n[databases]\n", f"\n[databases]\n{line}"))
    run(OPERATIONS.quoted("systemctl restart pgbouncer"))


def set_limits(database: str) -> None:
    """Give the role its time limits in a database."""
    commands = OPERATIONS.block("ALTER ROLE chatapi")
    commands = commands.replace("IN DATABASE chatapi", f"IN DATABASE {database}")
    psql = OPERATIONS.quoted("runuser -u postgres -- psql")
    run(f"{psql} --set ON_ERROR_STOP=1", answers=commands)


def restore() -> None:
    """Back the service up, stop it, and restore it into a new database behind PgBouncer."""
    run("mkdir /root/backup")
    folder = "export BACKUP=/root/backup\n"
    direct = f"{folder}export DATABASE_URL={DIRECT}chatapi\n"
    run_with_settings(direct + BACKUP.block("pg_dump --format=custom --file="))
    stream()  # this one is not in the backup
    run(BACKUP.quoted("systemctl stop 'chatapi@*'"))
    run(BACKUP.quoted("redis-cli flushall"))
    create = BACKUP.quoted("runuser -u postgres -- createdb --owner=chatapi NAME")
    run(create.replace("NAME", "restored"))
    direct = direct.replace("5432/chatapi", "5432/restored")
    run_with_settings(direct + BACKUP.block("pg_restore --no-owner --exit-on-error --dbname="))
    set_limits("restored")
    add_to_pgbouncer("restored")
    SETTINGS.write_text(replace_once(SETTINGS.read_text(), ":6432/chatapi", ":6432/restored"))
    run(BACKUP.quoted("systemctl start chatapi@reaper"))
    compare = BACKUP.block(".venv/bin/python manage.py verifyledger --seal")
    expect(", no difference.", run_with_settings(folder + compare))
    run(BACKUP.quoted("systemctl start chatapi@worker1 chatapi@worker2 chatapi@web1 chatapi@web2"))
    wait_for_processes()
    stream()
    doctor()


def set_up_replica() -> None:
    """Make a streaming replica on this machine, and check that the operator's Overview reads it."""
    role, access = (
        re.split(r" +(?:--|#) ", line)[0] for line in OPERATIONS.block("REPLICATION").splitlines()
    )
    psql = OPERATIONS.quoted("runuser -u postgres -- psql")
    append("/etc/postgresql/15/main/pg_hba.conf", access.replace("REPLICAS-ADDRESS", "127.0.0.1") + "\n")
    reload = OPERATIONS.quoted("SELECT pg_reload_conf()")
    run(f"{psql} --set ON_ERROR_STOP=1", answers=f"{role.replace('…', PASSWORD)}\n{reload};\n")
    folder = "/var/lib/postgresql/15/replica"
    run(f"pg_createcluster 15 replica --port 5433 && rm --recursive {folder} && mkdir {folder}")
    run(f"chown postgres: {folder} && chmod 700 {folder}")
    copy = OPERATIONS.block("pg_basebackup").replace("PRIMARY", "127.0.0.1").replace("FOLDER", folder)
    run(f"export PGPASSWORD={PASSWORD}; cd /; runuser -u postgres -- {copy}")
    run("systemctl start postgresql@15-replica")
    name = OPERATIONS.quoted("CHATAPI_REPLICA_DATABASE_URL")
    append(SETTINGS, f"{name}={DIRECT.replace('5432', '5433')}restored\n")
    restart_webs()
    expect("ok       replica       127.0.0.1 is 0.0 s behind.", doctor())
    browser, cookies = signed_in()
    # The operator's sign-in was a change, so their pages read the primary for a minute.
    cookies.clear(NGINX.host, "/", "chatapi_wrote")
    browser.open(f"https://{NGINX.host}/admin/", timeout=30)
    reads = "SELECT sum(seq_scan + idx_scan) > 0 FROM pg_stat_user_tables WHERE relname = 'usage_hourlyusage'"
    wait_for(
        lambda: "t" in run(f'{psql} -p 5433 -d restored -tc "{reads}"'), "the Overview to read the replica"
    )
