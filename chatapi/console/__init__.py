"""The console: the pages on which an organization's people use the service."""
