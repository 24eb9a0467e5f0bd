"""Chooses the deployment that a request asks, and the time of each further attempt."""
