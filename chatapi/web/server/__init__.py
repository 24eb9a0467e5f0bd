"""The server of a web process, Daphne with bounds, drain and clean headers; it imports no application."""
