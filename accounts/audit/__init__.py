"""The audit log: each act with its person, object, time, and the values before and after."""
