"""Upstream bills: reading them, and comparing them with the books."""
