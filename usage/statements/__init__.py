"""Statements: what each organization owes for a month of UTC, by project, model, kind of tokens and price."""
