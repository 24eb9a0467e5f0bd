"""docs/operations.md, "Upgrading" and "Going back", under load."""

from by_hand.clients import load
from by_hand.databases import DIRECT
from by_hand.documents import OPERATIONS
from by_hand.machine import replace_once, run, wait_for
from by_hand.processes import doctor, restart_webs, restart_workers, run_with_settings, wait_for_processes


def go_back(previous: str) -> None:
    """Go back to the release before, in the order of "Going back"."""
    without_new_events = OPERATIONS.block("Event.objects")
    with load():
        run_with_settings(without_new_events)
        run(f"git reset --quiet --hard {previous} && make .venv/.base", online=True)
        restart_webs()
        wait_for(nothing_waits, "the queue to be empty")
        restart_workers()
        run_with_settings(without_new_events)


def nothing_waits() -> bool:
    """Return whether the queue is empty, by the metric that "Going back" names."""
    metric = OPERATIONS.quoted('chatapi_generations_in_flight{state="queued"}')
    ask = 'curl -sf http://127.0.0.1:8001/metrics -H "Authorization: Bearer $CHATAPI_METRICS_TOKEN"'
    return f"\n{metric} 0.0\n" in run_with_settings(ask)


def upgrade() -> None:
    """Upgrade to the newest release, in the order of "Upgrading"."""
    fetch, _, rest = OPERATIONS.block("git pull").partition("\n")
    direct = f"set +a; export DATABASE_URL={DIRECT}chatapi;"
    with load():
        run(fetch, online=True)
        run(replace_once(rest, "set +a;", direct))
        wait_for_processes()
    doctor()
