"""The hot routes count wrong keys by address, as Django's do, and ask the database for nobody who has sent
too many.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pytest_django.fixtures import Settings

from accounts import api_keys
from accounts.authentication import KEY_HEADERS, Caller, CallerCache, sent_key
from accounts.errors import NotAuthenticated, TooManyFailedAttempts
from chatapi.concurrency import Batch
from chatapi.web.services import Services
from usage.errors import DatabaseUnavailable

MOST = 3


class Process(Services):
    """A web process without Redis, whose database knows one key."""

    def __init__(self) -> None:
        self.callers = CallerCache(max_age_ms=0)
        self.good = api_keys.generate(is_test=False)
        self.asked: list[str] = []
        self.is_database_away = False
        self.commits: Any = SimpleNamespace(read=self._read)
        self._look_ups = Batch(self._look_up_all)

    async def _read(self, look_up: Callable[..., Any], keys: set[str]) -> dict[str, Caller]:
        self.asked += keys
        await asyncio.sleep(0)
        if self.is_database_away:
            raise DatabaseUnavailable("away")
        return {self.good: Caller(1, 1, 1, False, False, "", "UTC")} if self.good in keys else {}


@pytest.fixture
def address(settings: Settings) -> str:
    """Return an unused IP."""
    settings.FAILED_AUTHENTICATIONS_PER_MINUTE = MOST
    return f"2001:db8:{uuid4().hex[:4]}:{uuid4().hex[:4]}::1"


def sent(key: str) -> Callable[[], str]:
    return lambda: sent_key(KEY_HEADERS, {"Authorization": f"Bearer {key}"}.get)


async def fail(process: Process, address: str) -> None:
    for key in (api_keys.generate(is_test=False), "nonsense", ""):
        with pytest.raises(NotAuthenticated):
            await process.authenticate(sent(key), address)


async def test_wrong_keys_of_every_kind_count(address: str) -> None:
    process = Process()
    await fail(process, address)
    for key in (api_keys.generate(is_test=False), "nonsense", "", process.good):
        with pytest.raises(TooManyFailedAttempts):
            await process.authenticate(sent(key), address)
    assert len(process.asked) == 1


async def test_a_key_that_was_right_is_looked_up_again(address: str) -> None:
    process = Process()
    await process.authenticate(sent(process.good), address)
    await fail(process, address)
    assert (await process.authenticate(sent(process.good), address)).api_key_id == 1


async def test_a_busy_key_is_looked_up_for_all_at_once(address: str) -> None:
    process = Process()
    wrong = api_keys.generate(is_test=False)
    asking = [process.authenticate(sent(key), address) for key in [process.good] * 20 + [wrong]]
    *callers, refused = await asyncio.gather(*asking, return_exceptions=True)
    assert [caller.api_key_id for caller in callers if isinstance(caller, Caller)] == [1] * 20
    assert isinstance(refused, NotAuthenticated)
    # One for the first, and one for all that came meanwhile.
    assert process.asked.count(process.good) <= 2


async def test_a_database_that_is_away_is_an_error_for_all_and_counts_as_no_wrong_key(address: str) -> None:
    process = Process()
    process.is_database_away = True
    asking = [process.authenticate(sent(process.good), address) for _ in range(2 * MOST)]
    shown = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in shown] == [DatabaseUnavailable] * 2 * MOST
    process.is_database_away = False
    assert (await process.authenticate(sent(process.good), address)).api_key_id == 1
