"""Files that are on the disk when they are said to be written, whatever happens to the machine the moment
after.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def writing(path: Path) -> Iterator[IO[str]]:
    """A new text file in UTF-8, lines as they are; what it was before is gone. On the disk at the end."""
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, content: bytes) -> None:
    """The file, with that content, on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the disk know the names of the folder's files: a file that is on the disk can still be without its
    name.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
