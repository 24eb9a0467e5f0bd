"""A server of another product, in a process that ends with its block."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.installation import die_with_parent, wait_for


@contextmanager
def running(command: list[str], is_up: Callable[[], bool], log: Path, **environment: str) -> Iterator[None]:
    """Run the server from its first answer to the end of the block, with its output in the log."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
    try:
        wait_for(lambda: is_up() or process.poll() is not None, command[0])
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(20)
