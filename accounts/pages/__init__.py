"""The operator's pages about who may call."""
