"""Sets the service up by hand on this machine, which `.ci/by_hand/run` has made, and checks each step of
docs/operations.md and of the other documents.

python3 -m by_hand upkeep PREVIOUS    upgrade and restoration; PREVIOUS is the commit to go back to, and to
                                      upgrade from
python3 -m by_hand services           other proxies, mail, logs, traces and payment
python3 -m by_hand machines           several servers and machines, and Kubernetes' containers

Commands and files are the code blocks and the quoted commands of the documents, so a wrong line in a document
fails here. Only the reader's choices are filled in: passwords, addresses, the certificate.
"""

import sys
import time
from collections.abc import Callable

from by_hand.clients import sign_in, stream
from by_hand.databases import restore, set_up_pgbouncer, set_up_replica
from by_hand.kubernetes import run_pods
from by_hand.machine import expect
from by_hand.mail import set_up_mail
from by_hand.monitoring import read_json_log, set_up_prometheus, set_up_tracing
from by_hand.payment import set_up_payment
from by_hand.processes import doctor
from by_hand.proxies import serve_below_a_path, set_up_caddy
from by_hand.redis_servers import add_stream_servers, set_up_sentinels
from by_hand.releases import go_back, upgrade
from by_hand.setting_up import (
    install,
    make_key,
    read_the_journal,
    set_up_nginx,
    set_up_redis,
    set_up_tables,
    start_processes,
)
from by_hand.several_machines import move_to_several_machines

Steps = dict[str, Callable[[], None]]
SET_UP: Steps = {
    "packages, the project, the role and its database": install,
    "Redis refuses when it is full, and writes no files": set_up_redis,
    "settings, tables, an operator, the sandbox's catalog": set_up_tables,
    "two workers, a reaper and two web processes": start_processes,
    "nginx with TLS": set_up_nginx,
    "a key": make_key,
    "doctor finds nothing": lambda: expect("ok", doctor()),
    "a stream through https": stream,
}
ROUTES: dict[str, Steps] = {
    "upkeep": {
        "an operator signs in through https": sign_in,
        "the journal says why a process does not start": read_the_journal,
        "Prometheus scrapes all processes and evaluates all rules": set_up_prometheus,
        "PgBouncer under load, with all time limits in force": set_up_pgbouncer,
        "back to the release before under load": lambda: go_back(sys.argv[2]),
        "an upgrade under load": upgrade,
        "backup, and restore into a new database": restore,
        "a replica for reports": set_up_replica,
        "three sentinels, and a primary that dies": set_up_sentinels,
    },
    "services": {
        "Caddy with TLS, and a restart under load": set_up_caddy,
        "nginx serves the service below a path": serve_below_a_path,
        "mail by STARTTLS with a password: a person signs up": set_up_mail,
        "the log as JSON, and its most expensive requests": read_json_log,
        "traces of web and worker reach a collector": set_up_tracing,
        "payment: a top-up, and usage for Stripe's invoices": set_up_payment,
    },
    "machines": {
        "a third server of streams comes and goes under load": add_stream_servers,
        "several machines": move_to_several_machines,
        "the containers of deploy/kubernetes, as processes": run_pods,
    },
}


def main() -> None:
    """Follow the documents; exit with status 1 at the first step that fails."""
    began_at = time.monotonic()
    for name, step in (SET_UP | ROUTES[sys.argv[1]]).items():
        step_began_at = time.monotonic()
        step()
        print(f"ok  {name}  {time.monotonic() - step_began_at:.0f} s", flush=True)
    print(f"All right, {time.monotonic() - began_at:.0f} s")


if __name__ == "__main__":
    main()
