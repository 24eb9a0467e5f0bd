"""The Celery application: its settings, each with its reason. A task carries a generation's id only."""

import os

from celery import Celery
from django.conf import settings

from chatapi.task_queue import BROKER_OPTIONS

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")

GENERATE_TASK = "chatapi.generate"


def _kombu_url(url: str) -> str:
    """kombu's spelling of a Unix socket."""
    return url.replace("unix://", "redis+socket://", 1)


# No Django fixup: it would close database connections around every task and check the project once more;
# `serve` sets Django up.
app = Celery("chatapi", fixups=[])
app.conf.update(
    broker_url=_kombu_url(settings.BROKER_URL),
    broker_connection_retry_on_startup=True,
    broker_transport_options=BROKER_OPTIONS,
    imports=["chatapi.worker.tasks"],
    task_default_queue=f"{settings.REDIS_KEY_PREFIX}generations",
    # Lost work is the lease's business: late acknowledgement would run a long generation again while it still
    # runs.
    task_acks_late=False,
    task_ignore_result=True,
    # A full worker must leave messages in the queue for the others.
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    # Nobody listens to events or sends remote commands; each would cost every message something.
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    worker_disable_rate_limits=True,
    worker_detect_quorum_queues=False,
    # Both only silence warnings: nothing is unacknowledged when a connection is lost.
    worker_cancel_long_running_tasks_on_connection_loss=True,
    worker_enable_prefetch_count_reduction=False,
    # Django configures logging.
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
)
