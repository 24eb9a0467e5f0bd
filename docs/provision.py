"""Provisions a tenant with OpenAI's Python client: a project, a key, limits, a budget, and the models.

    python docs/provision.py http://127.0.0.1:8000/v1 acme.admin-key acme.key

The admin key is read from the first file, and a new key is written to the second one. What is already as
`WANTED` says stays as it is, so running this twice changes nothing.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openai import NotFoundError, OpenAI

WANTED: dict[str, Any] = {
    "project": "web shop",
    "service account": "backend",
    "requests per minute": 600,
    "cents per month": 5_000,
    "models": ["sandbox"],
}


def main(base_url: str, admin_key_file: Path, key_file: Path) -> None:
    """Bring the tenant into the wanted state, and say what that took."""
    admin_key = json.loads(admin_key_file.read_text())["key"]
    with OpenAI(base_url=base_url, admin_api_key=admin_key) as client:
        projects = client.admin.organization.projects
        project = _named(projects.list(limit=100), WANTED["project"])
        if project is None:
            project = projects.create(name=WANTED["project"])
            print("created the project")
        _make_key(projects, project.id, key_file)
        _set_limits(projects, project.id)
    print(f"the project {project.name!r} is {project.id}, its key is in {key_file}")


def _make_key(projects: Any, project_id: str, key_file: Path) -> None:
    """Make the service account and its key, whose secret can be read only now."""
    has_key = key_file.exists() and key_file.stat().st_size > 0
    if _named(projects.service_accounts.list(project_id, limit=100), WANTED["service account"]) is not None:
        if not has_key:
            sys.exit(
                f"The service account is there, and {key_file} has no key: delete the account for a new key."
            )
        return
    if not has_key:
        key_file.unlink(missing_ok=True)  # An interrupted run leaves it empty.
    # Before the key is made: a secret that can't be written would be lost.
    with os.fdopen(os.open(key_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        made = projects.service_accounts.create(project_id, name=WANTED["service account"])
        file.write(f"{made.api_key.value}\n")
    print("created the service account and its key")


def _set_limits(projects: Any, project_id: str) -> None:
    """Set the rate limit for all models together, the budget and the list of models."""
    rate_limits = projects.rate_limits.list_rate_limits(project_id)
    limit = next(each for each in rate_limits if each.id == "rl-*")
    if limit.max_requests_per_1_minute != WANTED["requests per minute"]:
        projects.rate_limits.update_rate_limit(
            limit.id, project_id=project_id, max_requests_per_1_minute=WANTED["requests per minute"]
        )
        print("set the rate limit")
    try:
        cents = projects.spend_limit.retrieve(project_id).threshold_amount
    except NotFoundError:
        cents = None
    if cents != WANTED["cents per month"]:
        projects.spend_limit.update(
            project_id, currency="USD", interval="month", threshold_amount=WANTED["cents per month"]
        )
        print("set the budget")
    models = projects.model_permissions.retrieve(project_id)
    if (models.mode, models.api_model_ids) != ("allow_list", WANTED["models"]):
        projects.model_permissions.update(project_id, mode="allow_list", model_ids=WANTED["models"])
        print("set the models")


def _named(rows: Iterable[Any], name: str) -> Any:
    return next((row for row in rows if row.name == name), None)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
