"""Following a generation: its deltas, as they come to a web process for a client, and reasons for silence."""
