"""Signing in: the form, its limits, and sessions that pages stay open for."""
