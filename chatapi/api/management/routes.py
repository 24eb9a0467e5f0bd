"""All routes of the management API."""

from django.urls import path

from chatapi.api.management import audit_log, keys, limits, members, projects

ROUTES = [*projects.routes, *keys.routes, *members.routes, *limits.routes, *audit_log.routes]

urls = [path(f"organization/{route.path}", route.as_view()) for route in ROUTES]
