"""The worker process: claims a generation, calls an engine, publishes deltas, settles the money."""
