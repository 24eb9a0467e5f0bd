"""How dates and times are written; Django finds a module for each language here."""
