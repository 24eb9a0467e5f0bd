"""Monthly statements for tenants, and upstream bills beside our own sums."""
