"""Idempotency keys: the same key of the same API key stands for one generation, however often it is sent.

A key is claimed in the transaction that admits its generation, so two requests never both find it free. It is
released in the transaction that settles a failure which cost nothing and may not repeat itself
(`settlement.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from usage.database.clock import database_now
from usage.database.sql import db_value, execute, fetch_all, insert, rows_of_values, to_uuid
from usage.errors import AlreadyAdmitted

# As long as OpenAI's and Stripe's. After it, the key stands for a new request.
KEY_LIFETIME = timedelta(hours=24)
# A time limit holds for each statement: after days without housekeeping, one could not delete all.
DELETED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's key and a fingerprint of its request, both as SHA-256 in hexadecimal."""

    digest: str
    request_digest: str


def claim(now: datetime, keyed: Mapping[UUID, tuple[int, Idempotency]]) -> dict[UUID, AlreadyAdmitted]:
    """Claim keys for generations. Return the generations whose key stands for another one already."""
    if not keyed:
        return {}
    columns = ("api_key_id", "digest", "request_digest", "generation_id", "created_at")
    rows = [
        (api_key_id, key.digest, key.request_digest, generation_id, now)
        for generation_id, (api_key_id, key) in keyed.items()
    ]
    insert("usage_idempotencykey", columns, rows, "ON CONFLICT DO NOTHING")
    holders = _holders(now, [(api_key_id, key.digest) for api_key_id, key in keyed.values()])
    repeated: dict[UUID, AlreadyAdmitted] = {}
    again: dict[UUID, tuple[int, Idempotency]] = {}
    for generation_id, (api_key_id, key) in keyed.items():
        holder = holders.get((api_key_id, key.digest))
        if holder is None or holder.is_expired:
            again[generation_id] = (api_key_id, key)
        elif holder.generation_id != generation_id:
            repeated[generation_id] = holder.answer_to(key)
    release(holder.generation_id for holder in holders.values() if holder.is_expired)
    # An expired key, deleted here or by housekeeping between the two statements, is free now.
    return repeated | claim(now, again)


def already_admitted(api_key_id: int, key: Idempotency) -> AlreadyAdmitted | None:
    """Return what claiming the key would return, without claiming it; None for a free key."""
    holder = _current_holder(api_key_id, key.digest)
    return None if holder is None else holder.answer_to(key)


def is_known(api_key_id: int, digest: str) -> bool:
    """Return whether the key stands for a generation, of any request."""
    return _current_holder(api_key_id, digest) is not None


def release(generation_ids: Iterable[UUID]) -> None:
    """Release the keys of requests that were not admitted after all, or came to nothing."""
    ids = [db_value(generation_id) for generation_id in generation_ids]
    if ids:
        placeholders = ", ".join(["%s"] * len(ids))
        execute(
            f"DELETE FROM usage_idempotencykey WHERE generation_id IN ({placeholders})",  # noqa: S608
            ids,
        )


def delete_expired(now: datetime, items: Sequence[None]) -> list[bool]:
    """Delete expired keys, at most `DELETED_AT_ONCE`; an operation of `GroupCommit`.

    Its result is whether there may be more of them.
    """
    expired = fetch_all(
        "SELECT generation_id FROM usage_idempotencykey WHERE created_at < %s ORDER BY created_at LIMIT %s",
        [db_value(now - KEY_LIFETIME), DELETED_AT_ONCE],
    )
    release(to_uuid(generation_id) for (generation_id,) in expired)
    return [len(expired) == DELETED_AT_ONCE] * len(items)


class _Holder(NamedTuple):
    """The generation for which a key stands."""

    generation_id: UUID
    request_digest: str
    is_expired: bool
    """The key is older than `KEY_LIFETIME`, and housekeeping has not deleted it yet."""

    def answer_to(self, key: Idempotency) -> AlreadyAdmitted:
        return AlreadyAdmitted(self.generation_id, is_same_request=self.request_digest == key.request_digest)


def _current_holder(api_key_id: int, digest: str) -> _Holder | None:
    found = _holders(database_now(), [(api_key_id, digest)]).values()
    return next((holder for holder in found if not holder.is_expired), None)


def _holders(now: datetime, keys: Sequence[tuple[int, str]]) -> dict[tuple[int, str], _Holder]:
    # By both columns of the unique index: by the digest alone, the whole index would be read.
    values, parameters = rows_of_values("wanted", ["owner", "sent"], keys)
    rows = fetch_all(
        f"""{values} SELECT k.api_key_id, k.digest, k.generation_id, k.request_digest, k.created_at < %s
        FROM wanted JOIN usage_idempotencykey AS k
        ON k.api_key_id = wanted.owner AND k.digest = wanted.sent""",  # noqa: S608
        [*parameters, db_value(now - KEY_LIFETIME)],
    )
    return {
        (owner, sent): _Holder(to_uuid(held_by), asked, bool(is_expired))
        for owner, sent, held_by, asked, is_expired in rows
    }
