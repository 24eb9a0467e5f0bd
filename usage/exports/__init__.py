"""Signed exports of the ledger."""
