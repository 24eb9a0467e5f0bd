"""The outcomes of generations, and which of them are errors."""

from django.db import models


class Outcome(models.TextChoices):
    """Outcome of a generation."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    FAILED = "failed"
    WORKER_LOST = "worker_lost"
    NOT_STARTED = "not_started"


# The outcomes that count as errors; a client that left does not.
FAILED = (Outcome.FAILED, Outcome.WORKER_LOST, Outcome.NOT_STARTED)
# As a filter of requests: any of `FAILED`.
ANY_ERROR = "any_error"
