"""The paths of all pages, from the URL configuration: a new page is among them without being named."""

import re
from collections.abc import Iterator

from django.urls import URLPattern, URLResolver, get_resolver, reverse

from chatapi.api.openapi import content
from chatapi.docs import guides, reference
from tests.chatapi import test_access_matrix, test_console_access

# The parts of URLs of no row of ours; the pages at these URLs say that there is no such object.
UNKNOWN = {"uidb64": "MQ", "token": "unknown", "provider_id": "unknown", "pk": "1"}
# Redirects from old URLs, and the admin's route for unknown ones.
NO_PAGE = re.compile("_history$|app_list")
# The theme's search answers with a part of a page, for its box.
PART = "/admin/search/"
SIGNS_OUT = ("sign_out", "account_logout")


def routes(below: str, resolver: URLResolver | None = None, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the URL pattern of each route below this path."""
    for each in (resolver or get_resolver()).url_patterns:
        path = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from routes(below, each, path)
        elif isinstance(each, URLPattern) and each.name and path.startswith(below):
            yield each.name, path


def of_admin(house: test_access_matrix.House) -> dict[str, str]:
    """Return the paths of the admin's pages about the rows of this house, by the routes' names."""
    return {
        name: f"/{_with(path, UNKNOWN)}" if name in test_access_matrix.OPEN else house.path(name)
        for name, path in routes("admin/")
        if not NO_PAGE.search(name)
    }


def of_console(house: test_console_access.House) -> dict[str, str]:
    """Return the paths of the console's pages about the rows of this house, by the routes' names."""
    return {
        name: house.path(name) if name in test_console_access.TABLE else f"/{_with(path, UNKNOWN)}"
        for name, path in routes("console/")
        if name not in SIGNS_OUT
    }


def of_documentation() -> dict[str, str]:
    """Return the paths of all guides, of the reference and of one page of each of its kinds."""
    values = {"name": "Usage", "operation_id": "createChatCompletion"}
    pages = {name: f"/{_with(path, values)}" for name, path in routes("docs") if "slug" not in path}
    return pages | {f"guide {slug}": f"/docs/{slug}" for slug in guides.menu()}


def of_reference() -> list[str]:
    """Return the paths of all operations and types of the reference."""
    schemas = content()["components"]["schemas"]
    return [
        *(reverse("docs:operation", args=[name]) for name in reference.operations()),
        *(reverse("docs:schema", args=[name]) for name in schemas),
    ]


def views(paths: dict[str, str], more: dict[str, tuple[str, ...]], **values: object) -> dict[str, str]:
    """Return the paths and, by name, those with the queries of `more`."""
    found = dict(paths)
    for name, queries in more.items():
        for query in (query.format(**values) for query in queries):
            found[f"{name}?{query[:80]}"] = f"{paths[name]}?{query}"
    return found


def _with(pattern: str, values: dict[str, str]) -> str:
    """Return the URL of a pattern with these values."""
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda part: values[part[1]], pattern)
