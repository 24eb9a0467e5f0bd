"""How a generation ended, and which of these ends are errors."""

from django.db import models


class Outcome(models.TextChoices):
    """How a generation ended."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    FAILED = "failed"
    WORKER_LOST = "worker_lost"
    NOT_STARTED = "not_started"


FAILED = (Outcome.FAILED, Outcome.WORKER_LOST, Outcome.NOT_STARTED)
"""The outcomes that count as errors. A client that left is none."""
ANY_ERROR = "any_error"
"""Where requests are asked for by their outcome: any of those."""
