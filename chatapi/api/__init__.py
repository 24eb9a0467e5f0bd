"""Django's routes: those that clients read, /docs and /metrics, and errors in their envelope."""
