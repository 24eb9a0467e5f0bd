"""Idempotency keys in the books: their holders, how long they are held, the ends that give them back, and the
cost of a look-up.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts.models import APIKey
from tests.usage.conftest import NOW, admit_by_two, completed, plan, run
from usage.books import idempotency, ledger
from usage.books.idempotency import KEY_LIFETIME, Idempotency
from usage.database.clock import database_now
from usage.errors import AlreadyAdmitted
from usage.models import Generation, IdempotencyKey, Outcome, UsageSource
from usage.pricing import FREE, Tokens

Ask = Callable[..., ledger.Admission]
SENT = Idempotency("1" * 64, "a" * 64)
MOMENT = timedelta(milliseconds=1)
NOTHING = Tokens()


def admit(*admissions: ledger.Admission, now: datetime = NOW) -> list[Any]:
    with transaction.atomic():
        return list(ledger.admit(now, admissions))


def ended(admission: ledger.Admission, outcome: Outcome, tokens: Tokens = NOTHING, **changes: Any) -> None:
    """Admit it, run it, and settle it so."""
    admit(admission)
    source = UsageSource.COUNTED if tokens.completion_tokens else UsageSource.NONE
    (settled,) = ledger.settle(
        NOW, [completed(run(admission), outcome=outcome, tokens=tokens, usage_source=source, **changes)]
    )
    assert isinstance(settled, ledger.Charge)


def repeats(admission: ledger.Admission, now: datetime = NOW) -> UUID | None:
    """Return the generation that it repeats; None for a new one."""
    (result,) = admit(admission, now=now)
    return result.generation_id if isinstance(result, AlreadyAdmitted) else None


# ---- what frees a key


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.NOT_STARTED, Outcome.WORKER_LOST])
def test_a_failure_that_cost_nothing_frees_its_key(ask: Ask, outcome: Outcome) -> None:
    ended(ask(idempotency=SENT), outcome)
    assert repeats(ask(idempotency=SENT)) is None


def test_what_is_withdrawn_frees_its_key(ask: Ask) -> None:
    admit(first := ask(idempotency=SENT))
    ledger.withdraw(
        NOW, [ledger.Withdrawal(first.id, "service_unavailable", "The request could not be queued.")]
    )
    assert repeats(ask(idempotency=SENT)) is None


@pytest.mark.parametrize("changes", [{}, {"price": FREE}], ids=["charged", "free"])
@pytest.mark.parametrize(
    "outcome", [Outcome.COMPLETED, Outcome.FAILED, Outcome.WORKER_LOST, Outcome.CLIENT_CANCELLED]
)
def test_an_end_with_output_keeps_its_key(ask: Ask, outcome: Outcome, changes: dict[str, Any]) -> None:
    ended(first := ask(idempotency=SENT, **changes), outcome, Tokens(10, 1))
    assert repeats(ask(idempotency=SENT)) == first.id


def test_what_someone_has_cancelled_keeps_its_key(ask: Ask) -> None:
    ended(first := ask(idempotency=SENT), Outcome.CLIENT_CANCELLED)
    assert repeats(ask(idempotency=SENT)) == first.id


def test_a_request_that_would_fail_again_keeps_its_key(ask: Ask) -> None:
    ended(first := ask(idempotency=SENT), Outcome.FAILED, is_final=True)
    assert repeats(ask(idempotency=SENT)) == first.id


def test_only_the_keys_of_failures_are_freed(ask: Ask) -> None:
    others = [ask(idempotency=Idempotency(str(number) * 64, "a" * 64)) for number in range(2, 5)]
    admit(*others)
    failed = ask(idempotency=SENT)
    admit(failed)
    done = completed(run(others[0]))
    ledger.settle(
        NOW,
        [
            done,
            completed(run(failed), outcome=Outcome.FAILED, tokens=Tokens(), usage_source=UsageSource.NONE),
        ],
    )
    assert set(IdempotencyKey.objects.values_list("generation_id", flat=True)) == {
        other.id for other in others
    }


def test_a_completed_generation_costs_no_statement_for_its_key(ask: Ask) -> None:
    admit(first := ask(idempotency=SENT))
    settlement = completed(run(first))
    with CaptureQueriesContext(connection) as queries:
        ledger.settle(NOW, [settlement])
    assert [query["sql"] for query in queries if "idempotencykey" in query["sql"]] == []


# ---- for how long


def test_a_key_stands_for_a_day_to_the_moment(ask: Ask) -> None:
    admit(first := ask(idempotency=SENT))
    assert repeats(ask(idempotency=SENT), NOW + KEY_LIFETIME) == first.id


def test_an_expired_key_is_free_before_housekeeping_comes_by(ask: Ask) -> None:
    admit(ask(idempotency=SENT))
    later = NOW + KEY_LIFETIME + MOMENT
    second, third = ask(idempotency=SENT), ask(idempotency=SENT)
    admitted, refused = admit(second, third, now=later)
    assert admitted == second.id
    assert refused.generation_id == second.id
    assert IdempotencyKey.objects.get().created_at == later
    assert repeats(ask(idempotency=SENT), later + KEY_LIFETIME) == second.id


def test_housekeeping_forgets_the_keys_of_yesterday(ask: Ask) -> None:
    admit(ask(idempotency=SENT))
    admit(young := ask(idempotency=Idempotency("2" * 64, "a" * 64)), now=NOW + 2 * MOMENT)
    idempotency.delete_expired(NOW + KEY_LIFETIME + MOMENT, [None])
    assert IdempotencyKey.objects.get().generation_id == young.id


def test_many_expired_keys_are_deleted_in_several_transactions(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "DELETED_AT_ONCE", 2)
    admit(*(ask(idempotency=Idempotency(f"{number:064}", "a" * 64)) for number in range(5)))
    later, left, is_more = NOW + KEY_LIFETIME + MOMENT, [], True
    while is_more:
        (is_more,) = idempotency.delete_expired(later, [None])
        left.append(IdempotencyKey.objects.count())
    assert left == [3, 1, 0]


# ---- whose it is


def test_two_keys_of_one_project_may_send_the_same(key: APIKey, ask: Ask) -> None:
    other = APIKey.objects.create(project=key.project, public="storystory34", digest="1" * 64)
    mine, theirs = ask(idempotency=SENT), ask(idempotency=SENT, api_key_id=other.pk)
    assert admit(mine, theirs) == [mine.id, theirs.id]
    assert repeats(ask(idempotency=SENT)) == mine.id
    assert repeats(ask(idempotency=SENT, api_key_id=other.pk)) == theirs.id


def test_a_key_can_be_looked_up_without_claiming_it(key: APIKey, ask: Ask) -> None:
    assert idempotency.already_admitted(key.pk, SENT) is None
    admit(first := ask(idempotency=SENT), now=database_now())
    known = idempotency.already_admitted(key.pk, SENT)
    assert known is not None
    assert (known.generation_id, known.is_same_request) == (first.id, True)
    another = idempotency.already_admitted(key.pk, Idempotency(SENT.digest, "b" * 64))
    assert another is not None
    assert not another.is_same_request
    assert idempotency.already_admitted(key.pk + 1, SENT) is None
    IdempotencyKey.objects.update(created_at=database_now() - KEY_LIFETIME - MOMENT)
    assert idempotency.already_admitted(key.pk, SENT) is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "age",
    [None, KEY_LIFETIME - timedelta(hours=1), KEY_LIFETIME + timedelta(hours=1)],
    ids=["new", "known", "expired"],
)
def test_of_many_at_once_through_two_doors_one_is_admitted(
    key: APIKey, ask: Ask, age: timedelta | None
) -> None:
    known = set()
    if age is not None:
        admit(old := ask(idempotency=SENT), now=database_now() - age)
        known = {old.id} if age < KEY_LIFETIME else set()
    results = asyncio.run(admit_by_two([ask(idempotency=SENT) for _ in range(40)]))
    admitted = {result for result in results if isinstance(result, UUID)}
    assert {
        result.generation_id for result in results if isinstance(result, AlreadyAdmitted)
    } == admitted | known
    assert len(admitted | known) == 1
    assert Generation.objects.filter(id__in=admitted).count() == len(admitted)


# ---- what it costs


def test_every_read_of_keys_uses_an_index(ask: Ask) -> None:
    admit(*(ask(idempotency=Idempotency(f"{number:064}", "a" * 64)) for number in range(500)))
    with connection.cursor() as cursor:
        # Of what it believes to be one row PostgreSQL takes any index.
        cursor.execute("ANALYZE usage_idempotencykey")
    with CaptureQueriesContext(connection) as queries:
        ended(ask(idempotency=SENT), Outcome.FAILED)
        admit(
            *(ask(idempotency=Idempotency(f"{number:064}", "a" * 64)) for number in range(3)),
            now=NOW + KEY_LIFETIME + MOMENT,
        )
    asked = [
        query["sql"] for query in queries if "idempotencykey" in query["sql"] and "INSERT" not in query["sql"]
    ]
    assert len(asked) == 5  # holders and release of the failure; holders, release of the expired, holders
    for sql in asked:
        columns = "generation_id" if "DELETE" in sql else "api_key_id.*digest"
        assert re.search(rf"(USING .*INDEX|Index Cond).*{columns}", plan(sql))
