"""The operator's pages about keys, models, deployments and prices, and how the admin looks."""
