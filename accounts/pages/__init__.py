"""Admin pages about organizations, projects and people."""
