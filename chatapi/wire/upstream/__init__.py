"""Upstreams: writes their requests, and reads their answers into deltas."""
