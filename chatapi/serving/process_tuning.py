"""Tunes Python and the kernel's limits for a process that serves for months."""

import ctypes
import gc
import resource
import sys

# The garbage collector runs after this number of new objects. A running stream has a hundred, an ended one
# leaves none, and each thousand objects that it visits stop all streams for a millisecond.
YOUNG_OBJECTS = 50_000

# How long a thread may keep the interpreter while another one waits. The database's thread needs it after
# every statement, while it holds the write lock: with Python's default of 5 ms all other processes would
# wait.
SWITCH_INTERVAL_S = 0.000_5

# glibc's settings for the processes that `serve` starts: the memory of a large request goes back to the
# system as soon as it is freed. By default glibc keeps up to 64 MiB of it, in each of a process's arenas.
MALLOC_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(512 << 10), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}


def tune_process() -> None:
    """Prepare the process for many streams; call it when everything is imported."""
    give_memory_back()
    # The garbage collector ignores what is imported so far: a full collection over Django's modules stops
    # every stream for a tenth of a second.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Each stream holds a descriptor.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def give_memory_back() -> None:
    """Return what imports and migrations have freed to the system: 5 to 15 MB of a process."""
    gc.collect()
    trim_heaps()


def trim_heaps() -> None:
    """Return the free pages of all heaps, one for each thread, to the system."""
    # Only glibc has it, and only glibc needs it.
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
