"""Delivers the events of the outbox: by mail to people, by webhooks to systems."""
