"""The web process: authenticates, validates, admits, enqueues, and relays deltas as one dialect's bytes."""
