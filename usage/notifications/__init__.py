"""Finds what no single settlement shows, for the outbox of events."""
