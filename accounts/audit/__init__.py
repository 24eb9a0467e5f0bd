"""The audit log: who did what, when, and what it was before and after."""
