"""The triggers that keep the ledger and statements as they are and generations until they are exported.

Migrations make them. They are compared with their whole definition, because a trigger of the same name that
does nothing protects nothing.
"""

# ruff: noqa: S608  the text is compared, and never run

from collections.abc import Iterator

from django.db import connection

from usage.database.sql import fetch_all

_ENTRY, _SEAL, _GENERATION = "usage_ledgerentry", "usage_ledgerseal", "usage_generation"
_STATEMENT = "usage_statement"
_NEVER_CHANGED = "BEGIN SELECT RAISE(ABORT, '{}: rows are never changed or deleted'); END"
_NOT_BEFORE_HORIZON = "usage_generation: only what was settled before the retention horizon is dropped"
_SQLITE = (
    *(
        f"CREATE TRIGGER {table}_never_{action}s BEFORE {action} ON {table} {_NEVER_CHANGED.format(table)}"
        for table in (_ENTRY, _SEAL, _STATEMENT)
        for action in ("update", "delete")
    ),
    # INSERT OR REPLACE deletes rows without firing the triggers on DELETE. Before an insert, SQLite shows -1
    # for an id that it has yet to assign.
    f"CREATE TRIGGER {_ENTRY}_never_replaces BEFORE INSERT ON {_ENTRY} "
    f"WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM {_ENTRY} WHERE id = NEW.id) "
    f"OR NEW.kind IN ('charge', 'overage') AND EXISTS (SELECT 1 FROM {_ENTRY} "
    "WHERE kind IN ('charge', 'overage') AND generation_id = NEW.generation_id AND kind = NEW.kind) "
    f"OR NEW.reference <> '' AND EXISTS (SELECT 1 FROM {_ENTRY} "
    f"WHERE NOT (reference = '') AND reference = NEW.reference) {_NEVER_CHANGED.format(_ENTRY)}",
    f"CREATE TRIGGER {_SEAL}_never_replaces BEFORE INSERT ON {_SEAL} "
    f"WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM {_SEAL} WHERE id = NEW.id) "
    f"OR NEW.entries_count > 0 AND EXISTS (SELECT 1 FROM {_SEAL} WHERE entries_count > 0 "
    "AND last_id = NEW.last_id) "
    f"OR EXISTS (SELECT 1 FROM {_SEAL} WHERE previous_digest = NEW.previous_digest) "
    f"{_NEVER_CHANGED.format(_SEAL)}",
    f"CREATE TRIGGER {_STATEMENT}_never_replaces BEFORE INSERT ON {_STATEMENT} "
    f"WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM {_STATEMENT} WHERE id = NEW.id) "
    f"OR EXISTS (SELECT 1 FROM {_STATEMENT} WHERE organization_id = NEW.organization_id "
    f"AND month = NEW.month) {_NEVER_CHANGED.format(_STATEMENT)}",
    f"CREATE TRIGGER {_GENERATION}_never_replaces BEFORE INSERT ON {_GENERATION} "
    f"WHEN EXISTS (SELECT 1 FROM {_GENERATION} WHERE id = NEW.id) "
    f"OR NEW.rowid <> -1 AND EXISTS (SELECT 1 FROM {_GENERATION} WHERE rowid = NEW.rowid) "
    f"{_NEVER_CHANGED.format(_GENERATION)}",
    f"CREATE TRIGGER {_GENERATION}_never_moves BEFORE UPDATE OF id ON {_GENERATION} "
    f"{_NEVER_CHANGED.format(_GENERATION)}",
    f"CREATE TRIGGER {_GENERATION}_never_deletes BEFORE DELETE ON {_GENERATION} "
    "WHEN NOT COALESCE(OLD.settled_at < (SELECT max(day) FROM usage_retentionhorizon), 0) "
    f"BEGIN SELECT RAISE(ABORT, '{_NOT_BEFORE_HORIZON}'); END",
)
_REFUSE = (
    "usage_refuse_change() BEGIN RAISE EXCEPTION USING "
    "MESSAGE = TG_TABLE_NAME || ': rows are never changed or deleted', ERRCODE = 'restrict_violation'; END"
)
_POSTGRESQL = (
    *(
        f"CREATE TRIGGER {table}_never_changes BEFORE DELETE OR UPDATE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {_REFUSE}"
        for table in (_ENTRY, _SEAL, _STATEMENT)
    ),
    f"CREATE TRIGGER {_GENERATION}_never_deletes BEFORE DELETE ON {_GENERATION} FOR EACH ROW "
    "EXECUTE FUNCTION usage_keep_generation() BEGIN IF COALESCE(OLD.settled_at < "
    "(SELECT CAST(max(day) AS timestamp) AT TIME ZONE 'UTC' FROM usage_retentionhorizon), FALSE) THEN "
    "RETURN OLD; END IF; RAISE EXCEPTION USING "
    f"MESSAGE = '{_NOT_BEFORE_HORIZON}', ERRCODE = 'restrict_violation'; END",
    f"CREATE TRIGGER {_GENERATION}_never_truncates BEFORE TRUNCATE ON {_GENERATION} "
    f"FOR EACH STATEMENT EXECUTE FUNCTION {_REFUSE}",
)
_EXPECTED = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}
_FOUND = {
    "sqlite": "SELECT sql FROM sqlite_master WHERE type = 'trigger'",
    # "O" fires in a session that is no replica's, "A" in every one.
    "postgresql": """
        SELECT concat_ws(' ', pg_get_triggerdef(pg_trigger.oid, TRUE), prosrc) FROM pg_trigger
        JOIN pg_proc ON pg_proc.oid = tgfoid JOIN pg_language ON pg_language.oid = prolang
        WHERE NOT tgisinternal AND lanname = 'plpgsql' AND proconfig IS NULL AND
        (tgenabled = 'A' OR tgenabled = 'O' AND current_setting('session_replication_role') <> 'replica')""",
}


def missing() -> Iterator[str]:
    """Yield the names of the triggers that are gone, disabled or not as migrations made them."""
    found = {" ".join(definition.split()) for (definition,) in fetch_all(_FOUND[connection.vendor])}
    yield from (
        definition.split()[2] for definition in _EXPECTED[connection.vendor] if definition not in found
    )
