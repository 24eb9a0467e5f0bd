"""The processes on one machine: first start, embedded Valkey, supervision, an orderly end."""
