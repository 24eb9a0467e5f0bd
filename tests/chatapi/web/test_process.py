"""What the settings of the web process mean for its server."""

import socket
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from chatapi.apps import WEEK_MS
from chatapi.web import process
from chatapi.web.limits import Limits
from chatapi.web.server import listen


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """The limits of whatever was served, which nothing is here."""
    found: list[Limits] = []

    def serve(*_: object, limits: Limits, **__: Any) -> None:
        found.append(limits)

    monkeypatch.setattr(process, "serve", serve)
    monkeypatch.setattr(process, "settle_in", lambda: None)
    return found


@pytest.mark.parametrize("stall_ms", [30_000, 600_000])
def test_the_kernel_is_as_patient_as_the_server(settings: Settings, served: list[Limits], stall_ms: int) -> None:
    """It takes a client that reads nothing for one that is gone, though its machine answers."""
    settings.STALL_MS = stall_ms
    process.run(host="127.0.0.1", port=0)
    assert served[0].user_timeout_seconds > served[0].stall_seconds == stall_ms / 1_000


def test_a_client_that_is_gone_is_not_noticed_sooner_than_usual(settings: Settings, served: list[Limits]) -> None:
    settings.STALL_MS = 100
    process.run(host="127.0.0.1", port=0)
    assert served[0].user_timeout_seconds == Limits().user_timeout_seconds


def test_the_kernel_takes_any_patience_that_a_setting_may_ask_for() -> None:
    with listen("127.0.0.1", 0, user_timeout_seconds=WEEK_MS / 1_000 + 1) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == WEEK_MS + 1_000
