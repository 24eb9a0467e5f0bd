"""Each view of django-allauth has the wrapper that the table in docs/changes.md has for its kind, and no
other site begins a sign-in at an identity provider.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from chatapi.console import account_pages, account_urls
from tests.chatapi.signing_in import SIGN_IN

CHANGES = (Path(__file__).parents[2] / "docs" / "changes.md").read_text()
CALLBACKS = "sign-in/provider/*/callback"
ROUTES: list[URLPattern] = [
    route for route in account_urls.urlpatterns
    if not inspect.unwrap(route.callback).__module__.startswith("chatapi.")
]  # fmt: skip


def rows() -> Iterator[tuple[list[str], str]]:
    """Yield the paths and the wrapper of each row of the table."""
    _, _, table = CHANGES.partition("| kind of view |")
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        _, _, paths, wrapper, _ = line.split("|")
        yield re.findall(r"`(.*?)`", paths), wrapper.strip(" `")


def wrappers_of(view: Callable[..., Any]) -> list[str]:
    """Return the functions of `account_pages` that wrap the view, the outermost first."""
    found = []
    while hasattr(view, "__wrapped__"):
        if view.__code__.co_filename == account_pages.__file__:
            found.append(view.__code__.co_qualname.partition(".")[0])
        view = view.__wrapped__
    return found


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.name))
def test_a_view_has_the_wrapper_of_its_kind(route: URLPattern) -> None:
    path = str(route.pattern)
    own = next((wrapper for paths, wrapper in rows() if any(fnmatchcase(path, each) for each in paths)), None)
    assert own is not None, "no row of the table has this path"
    *names, innermost = re.findall(r"\w+", own)
    assert innermost == "view"
    expected: Any = inspect.unwrap(route.callback)
    for name in reversed(names):
        expected = getattr(account_pages, name)(expected)
    assert wrappers_of(route.callback) == wrappers_of(expected) != []


def test_each_path_of_the_table_is_there() -> None:
    patterns = [path for paths, _ in rows() for path in paths]
    assert len(patterns) > 10
    paths = [str(route.pattern) for route in ROUTES]
    assert [each for each in patterns if not any(fnmatchcase(path, each) for path in paths)] == []


def begins_at_a_provider(route: URLPattern) -> bool:
    path, module = str(route.pattern), inspect.unwrap(route.callback).__module__
    is_of_provider = path.startswith("sign-in/provider/") or module.startswith("allauth.socialaccount")
    return is_of_provider and not fnmatchcase(path, CALLBACKS)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("route", [each for each in ROUTES if begins_at_a_provider(each)])
def test_no_other_site_begins_a_sign_in_at_a_provider(db: None, route: URLPattern, site: str) -> None:
    path = reverse(str(route.name), kwargs=dict.fromkeys(route.pattern.converters, "1"))
    for method in ("GET", "POST"):
        answer = Client(headers={"sec-fetch-site": site}).generic(method, path)
        assert (answer.status_code, answer.headers.get("location")) == (302, SIGN_IN)
