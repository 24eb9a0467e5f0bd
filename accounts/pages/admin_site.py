"""The admin's site: who may enter, how one signs in, and where who was invited chooses a password."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import BadRequest
from django.core.paginator import InvalidPage
from django.db import DataError, IntegrityError
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from unfold.sites import UnfoldAdminSite

from accounts import access
from accounts.invitations import ChoosePassword
from accounts.sign_in.form import SignInForm

MAX_SEARCH_CHARACTERS = 200
_SEARCHES = ("q", "s", "term")
"""The names of what is typed: above a list, in the theme's search of everything, and in a field that
completes it.
"""
_PATTERNS = {"regex", "iregex"}
"""Lookups that any list of Django's takes. On SQLite it is this process that matches, and some patterns take
it for ever.
"""


class Site(UnfoldAdminSite):
    """The theme's site, for operators and for people of organizations."""

    login_form = SignInForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Return whether the person is staff or belongs to an organization."""
        return access.may_enter(request.user)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the form; its status says why the person was refused."""
        response: HttpResponse = super().login(request, extra_context)
        form = (getattr(response, "context_data", None) or {}).get("form")
        if isinstance(form, SignInForm):
            response.status_code = form.status
        return response

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Callable[..., Any]:
        """Answer 400 for values in a URL or form that no column can hold."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            _check_lookups(request)
            try:
                return inner(request, *args, **kwargs)
            except (OverflowError, DataError, InvalidPage) as error:
                raise BadRequest("A number or a date in this request is out of range.") from error
            except IntegrityError as error:  # its form was right when it was checked: a button that was pressed twice, or two people
                raise BadRequest(
                    "Somebody has just saved what this can't stand beside, so it was not saved."
                ) from error
            except ValueError as error:
                if not _is_list(request):
                    raise
                raise BadRequest(
                    "A value in this list's address, or an id in its form, is none of its column's."
                ) from error

        return guarded

    def get_urls(self) -> list[URLPattern]:
        """Add the page where invited people choose a password."""
        return [
            path("invitation/<uidb64>/<token>/", ChoosePassword.as_view(), name="invitation"),
            *super().get_urls(),
        ]


def _check_lookups(request: HttpRequest) -> None:
    """Raise `BadRequest` for lookups that a database would refuse, or take very long for."""
    if any(name.rpartition("__")[2] in _PATTERNS for name in request.GET):
        raise BadRequest("A list can't be filtered by a pattern.")
    if any(len(request.GET.get(name, "")) > MAX_SEARCH_CHARACTERS for name in _SEARCHES):
        raise BadRequest(f"A search takes up to {MAX_SEARCH_CHARACTERS} characters.")


def _is_list(request: HttpRequest) -> bool:
    return request.resolver_match is not None and (request.resolver_match.url_name or "").endswith(
        "_changelist"
    )
