"""The operator's pages about usage and money."""
