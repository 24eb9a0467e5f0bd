"""Idempotency keys: the same key of the same API key stands for one generation, however often it is sent.

A key is claimed in the transaction that admits its generation, so there is no moment in which two requests
both see it free. It is free again in the transaction that settles a failure which cost nothing and need not
repeat itself (`settlement.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from usage.database.clock import database_now
from usage.database.sql import db_value, execute, fetch_all, insert, rows_of_values, to_uuid
from usage.errors import AlreadyAdmitted

KEPT = timedelta(hours=24)
"""How long a key is remembered, as OpenAI's and Stripe's are; later it stands for a new request."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's key and what it asks for, both as SHA-256 in hex."""

    digest: str
    request_digest: str


class Keyed(Protocol):
    """A request that may carry an idempotency key."""

    @property
    def id(self) -> UUID:
        """Its generation."""

    @property
    def api_key_id(self) -> int:
        """Whose key it is."""

    @property
    def idempotency(self) -> Idempotency | None:
        """The key, if there is one."""


def claim(now: datetime, items: Sequence[Keyed]) -> dict[UUID, AlreadyAdmitted]:
    """Claim the items' keys; answers those whose key stands for another generation already."""
    return _claim(
        now, {item.id: (item.api_key_id, item.idempotency) for item in items if item.idempotency is not None}
    )


def _claim(now: datetime, keyed: Mapping[UUID, tuple[int, Idempotency]]) -> dict[UUID, AlreadyAdmitted]:
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
    # Yesterday's key, that we forget here or somebody forgot between our two statements, is free now.
    return repeated | _claim(now, again)


def already_admitted(api_key_id: int, key: Idempotency) -> AlreadyAdmitted | None:
    """What claiming the key would answer, without claiming it; None for a free one."""
    holder = _holders(database_now(), [(api_key_id, key.digest)]).get((api_key_id, key.digest))
    return None if holder is None or holder.is_expired else holder.answer_to(key)


def is_known(api_key_id: int, digest: str) -> bool:
    """Whether the key stands for a generation, whatever that one asks for."""
    holder = _holders(database_now(), [(api_key_id, digest)]).get((api_key_id, digest))
    return holder is not None and not holder.is_expired


def release(generation_ids: Iterable[UUID]) -> None:
    """Give back the keys of requests that were not admitted after all, or came to nothing."""
    ids = [db_value(generation_id) for generation_id in generation_ids]
    if ids:
        execute(f"DELETE FROM usage_idempotencykey WHERE generation_id IN ({_placeholders(ids)})", ids)  # noqa: S608  the text is ours


def forget_old(now: datetime, items: Sequence[None]) -> list[None]:
    """Forget the keys of yesterday; an operation of `GroupCommit`."""
    execute("DELETE FROM usage_idempotencykey WHERE created_at < %s", [db_value(now - KEPT)])
    return [None] * len(items)


class _Holder(NamedTuple):
    """The generation that a key stands for."""

    generation_id: UUID
    request_digest: str
    is_expired: bool
    """The key is older than `KEPT`, and housekeeping has not come by yet."""

    def answer_to(self, key: Idempotency) -> AlreadyAdmitted:
        return AlreadyAdmitted(self.generation_id, is_same_request=self.request_digest == key.request_digest)


def _holders(now: datetime, keys: Sequence[tuple[int, str]]) -> dict[tuple[int, str], _Holder]:
    # By both columns of the unique index: by the digest alone it would be read whole.
    values, parameters = rows_of_values("wanted", ["owner", "sent"], keys)
    rows = fetch_all(
        f"""{values} SELECT k.api_key_id, k.digest, k.generation_id, k.request_digest, k.created_at < %s
        FROM wanted JOIN usage_idempotencykey AS k ON k.api_key_id = wanted.owner AND k.digest = wanted.sent""",  # noqa: S608
        [*parameters, db_value(now - KEPT)],
    )
    return {
        (owner, sent): _Holder(to_uuid(held_by), asked, bool(is_expired))
        for owner, sent, held_by, asked, is_expired in rows
    }


def _placeholders(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))
