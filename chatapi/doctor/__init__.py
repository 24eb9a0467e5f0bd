"""Checks an installation for `manage.py doctor`: every finding is one line with the next step."""
