"""Writes, finds and deletes responses in the database, for projects that store them for days.

The content is encrypted (`accounts/encryption.py`), bound to the response's id.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from django.db.models import Count, Exists, OuterRef, QuerySet, Sum

from accounts import access, encryption
from accounts.authentication import Caller
from accounts.encryption import Purpose
from accounts.models import Project
from chatapi.models import StoredResponse
from usage.database.clock import database_now
from usage.models import Generation

log = logging.getLogger(__name__)

MAX_RESPONSES = 100_000
# Of an organization, like `MAX_RESPONSES`; responses that run when it is reached are still stored.
MAX_BYTES = 1 << 30
MAX_RESPONSE_BYTES = 16 << 20
DELETED_AT_ONCE = 500


class Content(msgspec.Struct, frozen=True, array_like=True):
    """The stored content of a response."""

    state: bytes
    """The part of the request that later requests may refer to (`GenerationRequest.state`)."""
    batches: list[bytes]
    """The encoded deltas; without the terminal one if it was never published."""


def write(generation_id: UUID, content: Content) -> None:
    """Store a settled response, unless it is stored already, or its project stores no responses any more."""
    row = Generation.objects.select_related("project__organization").get(pk=generation_id)
    # The settings of now count: a project that has just stopped storing must find nothing new.
    if row.settled_at is None or not row.project.response_days:
        return
    encrypted = encrypt(generation_id, content)
    stored = StoredResponse(
        id=row.pk,
        organization_id=row.organization_id,
        project_id=row.project_id,
        is_test=row.is_test,
        model=row.model,
        ended_at=row.settled_at,
        size_bytes=len(encrypted),
        content=encrypted,
    )
    # Several workers may store the same one: the first wins, and no error aborts the transaction.
    StoredResponse.objects.bulk_create([stored], ignore_conflicts=True)


def find(caller: Caller, generation_id: UUID) -> Content | None:
    """Return the content of the caller's stored response, if it is kept and can be decrypted."""
    # Checked on reading, too, because expired responses are deleted only now and then.
    since = database_now() - timedelta(days=caller.stores_responses_days)
    rows = StoredResponse.objects.filter(pk=generation_id, ended_at__gt=since)
    row = access.visible_to(caller, rows).first()
    return None if row is None else decrypt(row)


def delete(generation_id: UUID) -> None:
    StoredResponse.objects.filter(pk=generation_id).delete()


def delete_expired(now: datetime, items: Sequence[None]) -> list[bool]:
    """Delete responses that are older than their projects store them; an operation of `GroupCommit`.

    Its result is whether there may be more expired ones.
    """
    stores = Exists(StoredResponse.objects.filter(project=OuterRef("pk")))
    projects = Project.objects.filter(stores).select_related("organization").order_by()
    counts = [_expired(project, now).delete()[0] for project in projects]
    return [DELETED_AT_ONCE in counts] * len(items)


def _expired(project: Project, now: datetime) -> QuerySet[StoredResponse]:
    """Return some responses that are older than the project stores them: all are if it stores none now."""
    last = now - timedelta(days=project.response_days)
    rows = StoredResponse.objects.filter(project=project, ended_at__lte=last)
    # A bounded number of rows: the transaction shares its commit with admissions.
    ids = list(rows.order_by("ended_at").values_list("pk", flat=True)[:DELETED_AT_ONCE])
    return StoredResponse.objects.filter(pk__in=ids)


def is_full(organization_id: int) -> bool:
    """Return whether the organization may store no more responses."""
    rows = StoredResponse.objects.filter(organization=organization_id)
    stored = rows.aggregate(n=Count("pk"), n_bytes=Sum("size_bytes", default=0))
    return bool(stored["n"] >= MAX_RESPONSES or stored["n_bytes"] >= MAX_BYTES)


def encrypt(generation_id: UUID, content: Content) -> bytes:
    return encryption.encrypt(Purpose.STORED_RESPONSES, generation_id.bytes, msgspec.msgpack.encode(content))


def decrypt(row: StoredResponse) -> Content | None:
    """Return the content; log an error and return None if the key has changed or the content is damaged."""
    text = encryption.decrypt(Purpose.STORED_RESPONSES, row.pk.bytes, bytes(row.content))
    try:
        return msgspec.msgpack.decode(text or b"", type=Content)
    except msgspec.DecodeError:
        log.error("%s can't be decrypted: it was stored under another CHATAPI_SECRET_KEY, or is damaged", row)
        return None
