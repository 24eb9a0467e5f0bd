"""Measures pages and reports over many requests, on SQLite and, if DATABASE_URL is set, on that PostgreSQL
(it is filled).

Exit status 1: a page or a route took longer than a second (the median of three), sent more than 12 queries,
or failed, or a page weighed more than 150 kB.
"""

from bench import each_database

if __name__ == "__main__":
    each_database.main(__doc__, "--generations", "bench.insights_reads")
