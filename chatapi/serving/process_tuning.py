"""What a process that serves for months asks of Python and of the kernel, once it has imported everything."""

import gc
import resource
import sys

YOUNG_OBJECTS = 50_000
"""By how many objects more than before the collector looks for garbage: a running stream has a hundred, an
ended one leaves none. Each thousand that it looks at stops all streams for a millisecond.
"""

SWITCH_INTERVAL_S = 0.000_5
"""How long a thread may keep the interpreter when another waits for it. The database's thread asks for it
back after every statement, with the write lock in its hand: Python's own 5 ms would make all other processes
wait for it.
"""


def settle_in() -> None:
    """Keep what is imported out of the garbage collector's sight, let threads take turns, allow as many
    descriptors as the system does.

    A full collection over Django's modules stops every stream for a tenth of a second; each stream holds a
    descriptor.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
