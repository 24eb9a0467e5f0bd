"""Files that are on the disk when the call returns, even if the machine fails right after."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """Yield a UTF-8 text file that replaces the old one, line ends as written; on the disk at the end."""
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, content: bytes) -> None:
    """Write the file and wait until its content is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the folder's names to the disk: a file on the disk may still lack its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
