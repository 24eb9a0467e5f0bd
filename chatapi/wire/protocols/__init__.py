"""Protocols: how one family of clients talks; a folder each, and a row in one table."""
