"""What it cost: generations, budgets, prices, the ledger, rollups, reports."""
