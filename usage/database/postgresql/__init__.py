"""Django's database backend for PostgreSQL, for servers that restart and servers that hang."""
