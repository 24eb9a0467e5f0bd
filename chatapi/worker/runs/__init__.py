"""One running generation: its stop, what it has used, and what it publishes."""
