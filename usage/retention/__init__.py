"""Drops old generations, once they are exported and every check agrees."""
