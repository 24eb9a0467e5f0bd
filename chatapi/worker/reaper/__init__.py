"""Closes what dead processes left open, and cleans up."""
