"""The management API of an organization, for admin keys with a role, in OpenAI's shapes ("Administration").

`operations.py` says what an operation is, `route.py` checks, reads and answers, `pages.py` makes pages;
`objects.py` and `bodies.py` have the types. The routes are in a file for each noun.
`chatapi/api/openapi_routes.py` documents all of them.
"""

from django.urls import path

from chatapi.api.management import (
    audit_log,
    certificates,
    data_retention,
    groups,
    hosted_tools,
    keys,
    limits,
    member_roles,
    members,
    project_roles,
    projects,
    spend_alerts,
    workload_identity,
)

ROUTES = [
    *projects.routes, *keys.routes, *workload_identity.routes, *members.routes, *member_roles.routes,
    *groups.routes, *project_roles.routes, *limits.routes, *spend_alerts.routes, *data_retention.routes,
    *hosted_tools.routes, *certificates.routes, *audit_log.routes,
]  # fmt: skip

urls = [path(f"{route.below}{route.path}", route.as_view()) for route in ROUTES]
