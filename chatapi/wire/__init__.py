"""The wire, pure: requests in, deltas through, bytes out; no Django, Redis, Celery or sockets in here."""
