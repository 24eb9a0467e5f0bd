"""The triggers that migrations have made, as the database should tell them: one of the same name that does
nothing protects nothing.
"""

# ruff: noqa: S608  the text is compared, and never run

from collections.abc import Iterator, Mapping

from django.db import connection

from usage.database.sql import execute, fetch_all

_NEVER_CHANGED = "BEGIN SELECT RAISE(ABORT, '{table}: rows are never changed or deleted'); END"
_SQLITE = (
    *(
        f"CREATE TRIGGER {table}_never_{action}s BEFORE {action} ON {table} {_NEVER_CHANGED.format(table=table)}"
        for table in ("usage_ledgerentry", "usage_ledgerseal")
        for action in ("update", "delete")
    ),
    "CREATE TRIGGER usage_ledgerentry_never_replaces BEFORE INSERT ON usage_ledgerentry "
    "WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM usage_ledgerentry WHERE id = NEW.id) "
    "OR NEW.kind IN ('charge', 'overage') AND EXISTS (SELECT 1 FROM usage_ledgerentry WHERE kind IN ('charge', 'overage') "
    "AND generation_id = NEW.generation_id AND kind = NEW.kind) "
    "OR NEW.reference <> '' AND EXISTS (SELECT 1 FROM usage_ledgerentry WHERE NOT (reference = '') AND reference = NEW.reference) "
    + _NEVER_CHANGED.format(table="usage_ledgerentry"),
    "CREATE TRIGGER usage_ledgerseal_never_replaces BEFORE INSERT ON usage_ledgerseal "
    "WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM usage_ledgerseal WHERE id = NEW.id) "
    "OR EXISTS (SELECT 1 FROM usage_ledgerseal WHERE last_id = NEW.last_id) "
    "OR EXISTS (SELECT 1 FROM usage_ledgerseal WHERE previous_digest = NEW.previous_digest) "
    + _NEVER_CHANGED.format(table="usage_ledgerseal"),
    "CREATE TRIGGER usage_generation_never_replaces BEFORE INSERT ON usage_generation "
    "WHEN EXISTS (SELECT 1 FROM usage_generation WHERE id = NEW.id) "
    "OR NEW.rowid <> -1 AND EXISTS (SELECT 1 FROM usage_generation WHERE rowid = NEW.rowid) "
    + _NEVER_CHANGED.format(table="usage_generation"),
    "CREATE TRIGGER usage_generation_never_moves BEFORE UPDATE OF id ON usage_generation "
    + _NEVER_CHANGED.format(table="usage_generation"),
    "CREATE TRIGGER usage_generation_never_deletes BEFORE DELETE ON usage_generation "
    "WHEN NOT COALESCE(OLD.settled_at < (SELECT max(day) FROM usage_retentionhorizon), 0) "
    "BEGIN SELECT RAISE(ABORT, 'usage_generation: only what was settled before the retention horizon is dropped'); END",
)
_SQLITE_REOPENING = tuple(
    f"CREATE TRIGGER usage_hourlyusage_{action}_reopens_its_day AFTER {action} ON usage_hourlyusage "
    "WHEN NEW.hour <= datetime('now', '-2 hours') BEGIN DELETE FROM usage_closedday WHERE day = substr(NEW.hour, 1, 10); END"
    for action in ("insert", "update")
)
_REFUSE = (
    "usage_refuse_change() BEGIN RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ': rows are never changed or deleted', "
    "ERRCODE = 'restrict_violation'; END"
)
_POSTGRESQL = (
    *(
        f"CREATE TRIGGER {table}_never_changes BEFORE DELETE OR UPDATE OR TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {_REFUSE}"
        for table in ("usage_ledgerentry", "usage_ledgerseal")
    ),
    "CREATE TRIGGER usage_generation_never_deletes BEFORE DELETE ON usage_generation FOR EACH ROW "
    "EXECUTE FUNCTION usage_keep_generation() BEGIN "
    "IF COALESCE(OLD.settled_at < (SELECT CAST(max(day) AS timestamp) AT TIME ZONE 'UTC' FROM usage_retentionhorizon), FALSE) THEN "
    "RETURN OLD; END IF; RAISE EXCEPTION USING "
    "MESSAGE = 'usage_generation: only what was settled before the retention horizon is dropped', ERRCODE = 'restrict_violation'; END",
    f"CREATE TRIGGER usage_generation_never_truncates BEFORE TRUNCATE ON usage_generation FOR EACH STATEMENT EXECUTE FUNCTION {_REFUSE}",
)
_POSTGRESQL_REOPENING = (
    "CREATE TRIGGER usage_hourlyusage_reopens_its_day AFTER INSERT OR UPDATE ON usage_hourlyusage FOR EACH ROW "
    "WHEN (new.hour <= (clock_timestamp() - '02:00:00'::interval)) EXECUTE FUNCTION usage_reopen_day() "
    "BEGIN DELETE FROM usage_closedday WHERE day = CAST(NEW.hour AT TIME ZONE 'UTC' AS date); RETURN NULL; END",
)
PROTECTING = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}
"""Those that keep the ledger as it is, and generations until they are exported."""
REOPENING = {"sqlite": _SQLITE_REOPENING, "postgresql": _POSTGRESQL_REOPENING}
"""Those that notice when an hour of a closed day is written."""
_FOUND = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'trigger'",
    # "O" fire in a session that is no replica's, "A" in every one.
    "postgresql": """
        SELECT concat_ws(' ', pg_get_triggerdef(pg_trigger.oid, TRUE), prosrc) FROM pg_trigger
        JOIN pg_proc ON pg_proc.oid = tgfoid JOIN pg_language ON pg_language.oid = prolang
        WHERE NOT tgisinternal AND lanname = 'plpgsql' AND proconfig IS NULL
        AND (tgenabled = 'A' OR tgenabled = 'O' AND current_setting('session_replication_role') <> 'replica')""",
}


def missing(expected: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The names of these triggers that are gone, switched off or not as they were made."""
    if connection.vendor == "postgresql":
        execute(
            "SELECT set_config('intervalstyle', 'postgres', TRUE)"
        )  # how a trigger's condition is told depends on it
    found = {" ".join(definition.split()) for (definition,) in fetch_all(_FOUND[connection.vendor])}
    yield from (
        definition.split()[2] for definition in expected[connection.vendor] if definition not in found
    )
