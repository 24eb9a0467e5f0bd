"""The Celery application and the reasons for its settings. A task carries only a generation's id."""

import os
import ssl
from typing import Any

from celery import Celery
from django.conf import settings

from accounts.redis_urls import sentinel_urls
from chatapi.task_queue import BROKER_OPTIONS

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")

GENERATE_TASK = "chatapi.generate"


def broker_settings(url: str) -> dict[str, Any]:
    """Return Celery's settings for a Redis URL as redis-py reads it, or for one with sentinels."""
    sentinels = sentinel_urls(url)
    url = sentinels.primary if sentinels else url
    return {
        # kombu has its own spelling of Unix sockets.
        "broker_url": url.replace("unix://", "redis+socket://", 1),
        # Without this kombu verifies no certificate of a rediss:// URL that has no ssl_… parameters.
        "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED} if url.startswith("rediss://") else None,
        # For `message_channel.py`, whose connections find the primary as those of all other clients do.
        "broker_transport_options": BROKER_OPTIONS | ({"sentinels": sentinels} if sentinels else {}),
    }


# Without the Django fixup, which closes database connections around every task and repeats the system checks;
# `serve` sets Django up.
app = Celery("chatapi", fixups=[])
app.conf.update(
    **broker_settings(settings.BROKER_URL),
    broker_connection_retry_on_startup=True,
    imports=["chatapi.worker.worker_process"],
    task_default_queue=f"{settings.REDIS_KEY_PREFIX}generations",
    # The lease handles lost work: late acknowledgement would start a long generation again while it runs.
    task_acks_late=False,
    task_ignore_result=True,
    # A full worker must leave messages in the queue for the others.
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    # Events and remote commands are not used, and would add to the cost of every message.
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    worker_disable_rate_limits=True,
    worker_detect_quorum_queues=False,
    # These only silence warnings: no message is unacknowledged when a connection is lost.
    worker_cancel_long_running_tasks_on_connection_loss=True,
    worker_enable_prefetch_count_reduction=False,
    # Django configures logging.
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
)
