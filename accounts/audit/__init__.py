"""The audit log: each act with its actor, object, time, and the values before and after."""
