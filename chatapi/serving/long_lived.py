"""What a process that serves for months asks of Python and of the kernel, once it has imported everything."""

import gc
import resource

YOUNG_OBJECTS = 20_000
"""So many new objects before the collector looks for garbage: a stream makes thousands that die by themselves."""


def settle_in() -> None:
    """Keep what is imported out of the garbage collector's sight, and allow as many descriptors as the system does.

    A full collection over Django's modules stops every stream for a tenth of a second; each stream holds a descriptor.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
