"""Drops old generations once they are exported and the books are right."""
