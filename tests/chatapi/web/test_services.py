"""The services of a web process: the first request makes them, and the next one tries again if that fails."""

from typing import Any

import pytest
from pytest_django.fixtures import Settings

from chatapi.delta_stream import StreamUnavailable
from chatapi.web import services
from chatapi.web.services import Services
from tests.installation import free_port


async def test_services_that_could_not_be_made_are_made_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.STREAMS_URL = settings.BROKER_URL = settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"

    def no_thread() -> Any:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(services, "GroupCommit", no_thread)
        with pytest.raises(RuntimeError):
            await Services.get()
    for _ in range(2):
        with pytest.raises(StreamUnavailable):
            await Services.get()
