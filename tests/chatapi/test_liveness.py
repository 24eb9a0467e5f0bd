"""A process without HTTP shows that it lives, as long as it can write."""

import asyncio
import logging
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from chatapi.serving.liveness import alive


async def test_a_state_folder_that_cannot_be_written_ends_no_process(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    settings.STATE_DIR = tmp_path / "file" / "state"
    with caplog.at_level(logging.WARNING):
        async with alive("worker"):
            await asyncio.sleep(0.01)
    assert f"{settings.STATE_DIR}/worker.alive can't be touched: " in caplog.text


async def test_the_file_is_there_while_the_process_lives(settings: Settings, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path / "new"
    async with alive("worker"):
        await asyncio.sleep(0.01)
        assert (tmp_path / "new" / "worker.alive").exists()
    assert not (tmp_path / "new" / "worker.alive").exists()
