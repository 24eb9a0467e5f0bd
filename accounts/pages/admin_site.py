"""The admin's site: who may enter, the sign-in form, and limits on what URLs ask for."""

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
from accounts.audit import recorder
from accounts.invitations import ChoosePassword
from accounts.pages.admin_mixins import ReadOnlyAdmin
from accounts.sign_in.form import SignInForm, ThemedSignInForm

MAX_SEARCH_CHARACTERS = 200
# Parameters of searches: above a list, in the theme's global search, and in autocompleted fields.
_SEARCHES = ("q", "s", "term")
# Lookups that Django's lists accept. On SQLite this process matches, and some patterns never end.
_PATTERNS = {"regex", "iregex"}
# The form was valid when it was checked; a second press or another person was faster.
CONFLICT = "This conflicts with a change that was saved just now, so it was not saved."


class Site(UnfoldAdminSite):
    """The theme's site, for operators and for people of organizations."""

    login_form = ThemedSignInForm

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
            except IntegrityError as error:
                raise BadRequest(CONFLICT) from error
            except ValueError as error:
                match = request.resolver_match
                if match is None or not (match.url_name or "").endswith("_changelist"):
                    raise  # elsewhere a ValueError is our own mistake
                raise BadRequest(
                    "A value in this list's URL, or an id in its form, does not fit its column."
                ) from error

        return guarded

    def watch_changes(self) -> None:
        """Record changes of all models of pages and inlines in the audit log.

        Those of `ReadOnlyAdmin` are left out: only the service writes their rows.
        """
        pages = [page for page in self._registry.values() if not isinstance(page, ReadOnlyAdmin)]
        recorder.watch(
            {page.model for page in pages} | {inline.model for page in pages for inline in page.inlines}
        )

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
