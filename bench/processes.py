"""CPU seconds and memory of whole process trees, read from Linux's /proc.

A group has a name and root processes. A process belongs to the group of its nearest ancestor that is a root:
`serve` owns itself, but not the web and worker processes below it if these are roots of other groups.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Groups = Mapping[str, Iterable[int]]
"""Names and the ids of their root processes."""


def process_groups(roots: Groups) -> dict[str, set[int]]:
    """Return the living members of every group."""
    parents = parent_ids()
    names = {pid: name for name, pids in roots.items() for pid in pids}
    members: defaultdict[str, set[int]] = defaultdict(set)
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor not in names:
            ancestor = parents[ancestor]
        if ancestor in names and ancestor in parents:
            members[names[ancestor]].add(pid)
    return {name: members[name] for name in roots}


def descendants(root: int) -> set[int]:
    """Return a process and all processes below it."""
    return process_groups({"tree": [root]})["tree"]


def parent_ids() -> dict[int, int]:
    """Return the parent of each process of the machine."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: int(fields[1]) for pid in pids if (fields := stat_fields(pid))}


def command_line(pid: int) -> str:
    """Return the command and arguments of a process; empty if it has ended."""
    return read(pid, "cmdline").replace("\0", " ")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return user and system time of these processes and of the ended children that they have waited for."""
    return sum(sum(map(int, stat_fields(pid)[11:15])) for pid in pids) / TICKS_PER_SECOND


def machine_cpu_seconds() -> float:
    """Return the busy seconds of all processors since the machine started."""
    user, nice, system, _idle, _iowait, *interrupts = map(int, (PROC / "stat").read_text().split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS_PER_SECOND


def peak_rss_mb(pids: Iterable[int]) -> float:
    """Sum each process' highest resident memory since `reset_peaks`; shared pages count in every process."""
    return sum(megabytes(pid, "status", "VmHWM:") for pid in pids)


def pss_mb(pids: Iterable[int]) -> float:
    """Return proportional memory now: a page shared by n processes counts an nth in each."""
    return sum(megabytes(pid, "smaps_rollup", "Pss:") for pid in pids)


def peak_pss_mb(pids: Collection[int]) -> float:
    """Return the highest memory since `reset_peaks`, with each shared page counted once.

    The kernel records only the peak of resident pages; the part that sharing saves is measured now.
    """
    return peak_rss_mb(pids) - rss_mb(pids) + pss_mb(pids)


def rss_mb(pids: Iterable[int]) -> float:
    """Return resident memory now; shared pages count in every process."""
    return sum(megabytes(pid, "smaps_rollup", "Rss:") for pid in pids)


def thread_seconds(pid: int) -> dict[str, float]:
    """Return the CPU time of each thread of a process by its name; threads of one name are added."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for task in (PROC / str(pid) / "task").glob("*"):
        thread = f"{pid}/task/{task.name}"
        if fields := stat_fields(thread):
            seconds[read(thread, "comm").strip()] += sum(map(int, fields[11:13])) / TICKS_PER_SECOND
    return dict(seconds)


def reset_peaks(pids: Iterable[int]) -> None:
    """Reset the peaks of memory (proc(5), clear_refs); processes of another user keep theirs."""
    for pid in pids:
        try:
            (PROC / str(pid) / "clear_refs").write_text("5")
        except OSError:
            continue


def stat_fields(pid: int | str) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on. The command's name before it may contain any
    character.
    """
    return read(pid, "stat").rpartition(")")[2].split()


def megabytes(pid: int, file: str, label: str) -> float:
    """Return a `label: 123 kB` line of a file in /proc, in MB; 0 if the process has ended."""
    lines = read(pid, file).splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(label)), 0.0)


def read(pid: int | str, file: str) -> str:
    """Return one file of a process; empty if the process has ended or belongs to another user."""
    try:
        return (PROC / str(pid) / file).read_text(errors="replace")
    except OSError:
        return ""
