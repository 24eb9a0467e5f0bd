"""Measures admissions, pages and reports with few end users and with very many, on SQLite and, if
DATABASE_URL is set, on that PostgreSQL (it is filled).

Exit status 1: a page or a route took longer than a second (the median of three), or failed.
"""

from bench import each_database

FEW = 100

if __name__ == "__main__":
    each_database.main(__doc__, "--end-users", "bench.end_users_reads", FEW)
