"""Attacks beside honest streams: `python -m bench.hostile` (bench/README.md)."""
