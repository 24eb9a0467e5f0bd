"""Measures the growth of the service's processes: their peak, and the proportional size of the whole tree."""

from bench import processes
from bench.targets import chatapi_roots


class Memory:
    """The growth of a service's processes since this object was made."""

    def __init__(self, serve_pid: int) -> None:
        self.serve_pid = serve_pid
        self.groups = {name: list(pids) for name, pids in self.living().items()}
        known = [pid for pids in self.groups.values() for pid in pids]
        processes.reset_peaks(known)
        self.peaks_before = {name: processes.peak_rss_mb(pids) for name, pids in self.groups.items()}
        self.proportional_before = self.proportional()
        self.growth = dict.fromkeys(self.groups, 0.0)

    def living(self) -> dict[str, set[int]]:
        """Return the members of each group; a process that was started later belongs to its parent's."""
        return processes.process_groups(chatapi_roots(self.serve_pid))

    def proportional(self) -> dict[str, float]:
        """Return PSS by group."""
        return {name: processes.pss_mb(pids) for name, pids in self.living().items()}

    def sample(self) -> None:
        """Measure once: the proportional size, and the peaks of the processes that ran from the beginning."""
        now = self.proportional()
        for name, pids in self.groups.items():
            by_peak = processes.peak_rss_mb(pids) - self.peaks_before[name]
            by_size = now.get(name, 0.0) - self.proportional_before.get(name, 0.0)
            self.growth[name] = round(max(self.growth[name], by_peak, by_size), 1)
