"""One running generation: how it is stopped, its usage, and its deltas on the way to the log."""
