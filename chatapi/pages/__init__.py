"""Admin pages about keys, models, deployments and prices, and the admin's look."""
