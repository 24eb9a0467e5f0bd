"""Upstreams: what each is asked for a request, and what of its answer becomes deltas."""
