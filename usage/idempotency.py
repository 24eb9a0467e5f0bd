"""Idempotency keys: the same key of the same API key stands for one generation, however often it is sent.

A key is claimed in the transaction that admits its generation, so there is no moment in which two requests both see it free.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from usage.database.sql import db_value, execute, fetch_all, insert, to_uuid
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
    return _claim(now, {item.id: (item.api_key_id, item.idempotency) for item in items if item.idempotency is not None})


def _claim(now: datetime, keyed: Mapping[UUID, tuple[int, Idempotency]]) -> dict[UUID, AlreadyAdmitted]:
    if not keyed:
        return {}
    columns = ("api_key_id", "digest", "request_digest", "generation_id", "created_at")
    rows = [(api_key_id, key.digest, key.request_digest, generation_id, now) for generation_id, (api_key_id, key) in keyed.items()]
    insert("usage_idempotencykey", columns, rows, "ON CONFLICT DO NOTHING")
    holders = _holders([key.digest for _, key in keyed.values()])
    repeated: dict[UUID, AlreadyAdmitted] = {}
    forgotten: dict[UUID, tuple[int, Idempotency]] = {}
    for generation_id, (api_key_id, key) in keyed.items():
        holder, request_digest = holders.get((api_key_id, key.digest), (None, ""))
        if holder is None:
            forgotten[generation_id] = (api_key_id, key)
        elif holder != generation_id:
            repeated[generation_id] = AlreadyAdmitted(holder, is_same_request=request_digest == key.request_digest)
    # Yesterday's key, that somebody forgot between our two statements, is free now.
    return repeated | _claim(now, forgotten)


def release(generation_ids: Iterable[UUID]) -> None:
    """Give back the keys of requests that were not admitted after all."""
    ids = [db_value(generation_id) for generation_id in generation_ids]
    if ids:
        execute(f"DELETE FROM usage_idempotencykey WHERE generation_id IN ({_placeholders(ids)})", ids)  # noqa: S608  the text is ours


def forget_old(now: datetime, items: Sequence[None]) -> list[None]:
    """Forget the keys of yesterday; an operation of `GroupCommit`."""
    execute("DELETE FROM usage_idempotencykey WHERE created_at < %s", [db_value(now - KEPT)])
    return [None] * len(items)


def _holders(digests: Sequence[str]) -> dict[tuple[int, str], tuple[UUID, str]]:
    rows = fetch_all(
        f"SELECT api_key_id, digest, generation_id, request_digest FROM usage_idempotencykey WHERE digest IN ({_placeholders(digests)})",  # noqa: S608
        digests,
    )
    return {(api_key_id, digest): (to_uuid(generation_id), request_digest) for api_key_id, digest, generation_id, request_digest in rows}


def _placeholders(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))
