"""A newer web process shares queue and database with an older worker: a message that the worker can't read
harms no other request.
"""

import base64
import json
import signal
from typing import Any

import msgspec
import pytest
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import AddField, DeleteModel, RemoveField, RenameField, RenameModel
from django.db.migrations.operations.base import Operation
from django.db.models import NOT_PROVIDED

from chatapi.celery import GENERATE_TASK, app
from chatapi.task_queue import TaskQueue
from chatapi.wire import deltas
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("signals"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "20000"}
"""Longer than a worker needs to start."""


def newer(message: bytes) -> bytes:
    """Return the message with arguments that only a newer worker reads."""
    envelope = json.loads(message)
    positional, named, options = json.loads(base64.b64decode(envelope["body"]))
    body = [positional, {**named, "v": named["v"] + 1, "urgency": "high"}, options]
    envelope["body"] = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps(envelope).encode()


def test_a_message_of_a_newer_version_is_as_good_as_lost_and_the_worker_lives(
    installation: Installation, ask: Ask
) -> None:
    """The worker drops the message, finds the generation missing, and enqueues it again in its own
    version.
    """
    queue = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
    calls = len(installation.calls("five"))
    installation.end("worker", signal.SIGTERM)
    with installation.open_valkey() as redis:
        answer = ask("five")
        turns = f"{queue.key}:turns"
        wait_for(lambda: redis.zcard(turns) == 1, "the request to be queued")
        [(message, _)] = redis.zpopmin(turns)
        assert isinstance(message, bytes)
        redis.lpush(queue.key, newer(message))
        installation.start_worker()
        wait_for(lambda: redis.llen(queue.key) == 0, "the worker to take it")
    assert answer.end().is_done
    assert len(installation.calls("five")) == calls + 1
    assert "Traceback" not in installation.log("worker").partition("is enqueued again")[2]
    assert ask("five").end().is_done


class OldStarted(msgspec.Struct, array_like=True, tag_field="delta", tag=1):
    """The first delta as the release before fallbacks knows it."""

    system_fingerprint: str | None = None
    service_tier: str | None = None
    context: dict[str, Any] = {}
    prompt_tokens: int | None = None


def test_an_older_web_process_reads_the_first_delta_of_a_newer_worker() -> None:
    written = deltas.encode([deltas.Started("fp", context={"a": 1}, model="another")])
    assert msgspec.msgpack.decode(written, type=list[OldStarted]) == [OldStarted("fp", context={"a": 1})]
    (read,) = deltas.decode(msgspec.msgpack.encode([OldStarted("fp")]))
    assert read == deltas.Started("fp"), "and a newer one that of an older worker"


# ---- the database while both run

OURS = ("accounts", "chatapi", "usage")


def test_migrations_leave_older_code_working_and_can_be_undone() -> None:
    """Older code writes rows without the new columns, and reads no removed ones."""
    wrong = [
        f"{app}.{name}: {operation.describe()}"
        for (app, name), migration in MigrationLoader(None, ignore_no_migrations=True).disk_migrations.items()
        for operation in migration.operations
        if app in OURS and not is_safe(operation)
    ]
    assert wrong == []


def is_safe(operation: Operation) -> bool:
    """Return whether older code survives the operation: removals come one release after their last use."""
    if isinstance(operation, RemoveField | RenameField | DeleteModel | RenameModel):
        return False
    if isinstance(operation, AddField):
        field = operation.field
        return field.many_to_many or field.null or field.db_default is not NOT_PROVIDED
    return operation.reversible
