"""The books: generations admitted and settled, budgets, credit, corrections, receipts."""
