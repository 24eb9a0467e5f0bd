"""Two processes that rebuild the usage at the same time wait for each other, and make the same tables."""

import threading
from typing import Any

import pytest
from django.db import connection

from tests.cast import Person, run
from usage import rollups
from usage.models import HourlyUsage


def rows() -> list[dict[str, Any]]:
    return [
        {**row, "id": None}
        for row in HourlyUsage.objects.order_by("hour", "api_key_id", "model", "outcome").values()
    ]


def rebuild(failures: list[Exception]) -> None:
    try:
        rollups.rebuild()
    except Exception as error:  # the test reports it
        failures.append(error)
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
def test_two_rebuilds_at_once_make_the_same_tables(
    alice: Person, bob: Person, transactional_db: None
) -> None:
    for person in (alice, bob, alice):
        run(person)
    before, failures = rows(), list[Exception]()
    threads = [threading.Thread(target=rebuild, args=(failures,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows() == before
    assert before
