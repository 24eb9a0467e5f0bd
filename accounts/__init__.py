"""Who may call: organizations, projects, members, API keys, access, audit."""
