"""A process that has started returns to the system what its start has freed."""

import subprocess
import sys

PIECES, PIECE_BYTES = 40_000, 1_000
CODE = f"""
from pathlib import Path
from chatapi.serving.process_tuning import give_memory_back

def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

pieces = [bytearray({PIECE_BYTES}) for _ in range({PIECES})]
del pieces[:-1]  # the last one keeps the C library from giving back what is before it
before = resident_pages()
give_memory_back()
print(before - resident_pages())
"""


def test_freed_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True, text=True)
    freed_bytes = int(done.stdout) * 4096
    assert freed_bytes > PIECES * PIECE_BYTES * 0.8
