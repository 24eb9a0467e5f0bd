"""Distributes tests to pytest-xdist's workers: a pytest plugin, named in pyproject.toml."""

from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling


class FilesAndGroups(LoadGroupScheduling):  # type: ignore[misc]  # it brings no types
    """Gives a worker all tests of an `xdist_group`, or all other tests of a file, at once.

    A module's fixtures are set up in one worker then. Whenever a test ends, the first process looks at all
    that a worker was given: some hundred files and groups instead of ten thousand tests.

    Groups have whole installations, and wait for them more than they compute; files compute. So the first
    worker begins with files, and all others begin with groups: there is always something to compute, and no
    long group is left for the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        return group.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        wants_file = node is next(iter(self.assigned_work))
        wanted = next((scope for scope in self.workqueue if scope.endswith(".py") == wants_file), None)
        if wanted is not None:
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndGroups | None:
    """Return the scheduler of `--dist loadgroup`; None for other values of `--dist`."""
    return FilesAndGroups(config, log) if config.getoption("dist") == "loadgroup" else None
