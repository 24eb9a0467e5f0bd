"""Commands that print end quietly when the reader of their output has left, and hide no other failure."""

import os
import subprocess
import sys

import pytest

from bench.children import PROJECT_FOLDER


def end_of(main: str, *flags: str, is_read: bool = False) -> tuple[int, str]:
    """Run the body of a `main` as a command; return its status and what it writes to stderr. Its output goes
    to a pipe that nobody reads, or to this process.
    """
    code = f"import os, sys\nfrom bench.command_line import run\ndef main():\n    {main}\nrun(main)"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, *flags, "-c", code],
            stdout=subprocess.PIPE if is_read else writer,
            stderr=subprocess.PIPE,
            cwd=PROJECT_FOLDER,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("flags", [(), ("-u",)], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("length", [10, 100_000])
def test_a_command_ends_quietly_without_a_reader(length: int, flags: tuple[str, ...]) -> None:
    assert end_of(f"print('x' * {length})", *flags) == (1, "")


OTHER_PIPE = "reader, writer = os.pipe(); os.close(reader); print('half'); os.write(writer, b'go')"


def test_a_broken_pipe_of_a_helper_keeps_its_traceback() -> None:
    status, error = end_of(OTHER_PIPE, is_read=True)
    assert status == 1
    assert error.startswith("Traceback")
    assert error.rstrip().endswith("BrokenPipeError: [Errno 32] Broken pipe")


def test_a_failure_is_not_replaced_when_the_reader_has_left() -> None:
    status, error = end_of("print('half'); raise ValueError('the reason')")
    assert status == 1
    assert error.rstrip().endswith("ValueError: the reason")
    assert "BrokenPipeError" not in error


def test_a_status_is_not_replaced_when_the_reader_has_left() -> None:
    assert end_of("print('half'); sys.exit(2)") == (2, "")


def test_a_command_that_is_read_ends_with_its_status() -> None:
    assert end_of("print('whole'); return 3", is_read=True) == (3, "")
