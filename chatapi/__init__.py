"""chatapi: chat completions for many tenants, every token accounted for."""
