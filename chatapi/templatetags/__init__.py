"""Template filters of the admin's look."""
