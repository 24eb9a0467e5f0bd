"""The memory of processes: shared pages count once, and the peak outlives the pages."""

import mmap
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

from bench import processes

MEBIBYTE = 1 << 20
SHARED_MB, OWN_MB, SHARERS = 48, 32, 3


def fill(memory: mmap.mmap, n_mb: int) -> None:
    for start in range(0, n_mb * MEBIBYTE, mmap.PAGESIZE):
        memory[start] = 1


def share(shared: mmap.mmap, pipe: Connection) -> None:
    """Touch all shared pages, then take and free some of its own."""
    fill(shared, SHARED_MB)
    pipe.send("ready")
    pipe.recv()
    with mmap.mmap(-1, OWN_MB * MEBIBYTE) as own:
        fill(own, OWN_MB)
    pipe.send("freed")
    pipe.recv()


@contextmanager
def sharers() -> Iterator[tuple[list[int], list[Connection]]]:
    """Run processes that share pages; yield their ids and their pipes."""
    context = multiprocessing.get_context("fork")
    with mmap.mmap(-1, SHARED_MB * MEBIBYTE) as shared:
        pipes = [context.Pipe() for _ in range(SHARERS)]
        children = [context.Process(target=share, args=(shared, theirs)) for _, theirs in pipes]
        for child in children:
            child.start()
        try:
            yield [child.pid or 0 for child in children], [ours for ours, _ in pipes]
        finally:
            for child in children:
                child.kill()
                child.join()


def test_a_peak_counts_shared_pages_once_and_freed_ones_of_each_process() -> None:
    with sharers() as (pids, pipes):
        assert [pipe.recv() for pipe in pipes] == ["ready"] * SHARERS
        processes.reset_peaks(pids)
        before_mb = processes.peak_pss_mb(pids)
        assert before_mb == pytest.approx(processes.pss_mb(pids), abs=2)
        assert processes.rss_mb(pids) - before_mb > (SHARERS - 1) * SHARED_MB * 0.9
        for pipe in pipes:
            pipe.send("go on")
        assert [pipe.recv() for pipe in pipes] == ["freed"] * SHARERS
        assert processes.peak_pss_mb(pids) - before_mb == pytest.approx(SHARERS * OWN_MB, abs=4)
        assert processes.pss_mb(pids) == pytest.approx(before_mb, abs=4)
