"""The database as everything here reaches it: one door, one clock, one turn to write."""
