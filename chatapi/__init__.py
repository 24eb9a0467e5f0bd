"""chatapi: chat completions for many tenants, every token accounted for."""

__version__ = "0.1.0"
