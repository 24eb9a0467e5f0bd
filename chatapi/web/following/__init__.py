"""Follows a generation for a client: receives its deltas, and finds out why its stream is silent."""
