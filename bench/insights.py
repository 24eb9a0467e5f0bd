"""How long pages and reports take over many requests, on SQLite and, where DATABASE_URL is given, on that
PostgreSQL (it is filled).

Exit status 1: a page or a route took longer than a second (the median of three), asked more than 12 queries,
weighed more than 150 kB, or failed.
"""

from bench import each_database

if __name__ == "__main__":
    each_database.main(__doc__, "--generations", "bench.insights_reads")
