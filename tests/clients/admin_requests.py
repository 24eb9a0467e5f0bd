"""The requests of `client.admin.organization`, by the signatures of OpenAI's own Python client."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import openai
from openai import OpenAI
from openai.resources.admin.organization import organization as sdk

from tests.installation import Installation

ABSENT = (
    "external_keys",
    "external_storage",
    "projects.roles.create",
    "projects.roles.delete",
    "projects.roles.update",
    "projects.service_tier_settings",
)
"""The resources and the requests of the SDK that are not here."""


def calls(resource: type, path: str = "") -> Iterator[str]:
    """The names of the resource's requests, and of those below it."""
    for name, member in vars(resource).items():
        if name.startswith("_") or name.startswith("with_"):
            continue
        if isinstance(member, openai._compat.cached_property):
            yield from calls(resource_of(resource, name), f"{path}{name}.")
        elif callable(member):
            yield f"{path}{name}"


def offered() -> set[str]:
    """Every request of the SDK that is here."""
    absent = tuple(f"{each}." for each in ABSENT)
    return {name for name in calls(sdk.Organization) if not f"{name}.".startswith(absent)}


def resource_of(parent: type, name: str) -> type:
    property_: Any = vars(parent)[name]
    below = property_.func.__annotations__["return"]
    return getattr(__import__(parent.__module__, fromlist=[below]), below)  # type: ignore[no-any-return]


def arguments(request: str) -> Mapping[str, inspect.Parameter]:
    """Return what a request takes, without the arguments that each request of the SDK has."""
    resource: Any = sdk.Organization
    *path, method = request.split(".")
    for each in path:
        resource = resource_of(resource, each)
    own = dict(inspect.signature(getattr(resource, method)).parameters)
    for each in ("self", "extra_headers", "extra_query", "extra_body", "timeout"):
        del own[each]
    return own


def named(organization: Any, request: str) -> Any:
    """Return the method of the client that makes the request."""
    for each in request.split("."):
        organization = getattr(organization, each)
    return organization


def owner_of(installation: Installation, organization: str) -> OpenAI:
    """A client whose key owns a new organization with one project."""
    names = ("--organization", organization, "--project", "management")
    key = installation.create_key(*names, "--manages-as", "owner")
    return OpenAI(base_url=f"{installation.url}/v1", admin_api_key=key, max_retries=0)


def accept(installation: Installation, path: str) -> None:
    """Choose a password, as the invited person does in a browser."""
    browser = build_opener(HTTPCookieProcessor())
    with browser.open(f"{installation.url}{path}") as page:
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', page.read().decode())
        assert token is not None
        form = {"csrfmiddlewaretoken": token[1]} | dict.fromkeys(
            ("new_password1", "new_password2"), "correct horse battery"
        )
        sent = Request(page.url, urlencode(form).encode())
    with browser.open(sent) as page:
        assert "Sign out" in page.read().decode()
