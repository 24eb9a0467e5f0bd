"""Closes generations of dead processes, and cleans up."""
