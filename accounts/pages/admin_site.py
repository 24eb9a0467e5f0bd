"""The admin's site: who may enter, and limits on what URLs ask for; and the answer of its own pages."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.views import LogoutView, redirect_to_login
from django.core.exceptions import BadRequest
from django.core.paginator import InvalidPage
from django.db import DataError, IntegrityError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.views.generic import RedirectView
from unfold.sites import UnfoldAdminSite

from accounts import access
from accounts.audit import recorder
from accounts.pages.admin_mixins import ReadOnlyAdmin

MAX_SEARCH_CHARACTERS = 200
# Parameters of searches: above a list, in the theme's global search, and in autocompleted fields.
_SEARCHES = ("q", "s", "term")
# Lookups that Django's lists accept. On SQLite this process matches, and some patterns never end.
_PATTERNS = {"regex", "iregex"}
_NOT_FOR_SINGLE_PROJECTS = (
    "The admin is for people who see a whole organization. You see single projects: they are here, in the "
    "console."
)
# The form was valid when it was checked; a second press or another person was faster.
CONFLICT = "This conflicts with a change that was saved just now, so it was not saved."


class Site(UnfoldAdminSite):
    """The theme's site, for operators and for people of organizations."""

    empty_value_display = "–"

    def has_permission(self, request: HttpRequest) -> bool:
        return access.may_enter(request.user)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirect to the one page on which people sign in, which also asks for second factors; people who
        see single projects only, to the console.
        """
        if not self.has_permission(request) and access.may_sign_in(request.user):
            messages.error(request, _NOT_FOR_SINGLE_PROJECTS)
            return redirect("console:home")
        if request.method == "GET" and self.has_permission(request):
            return redirect("admin:index")
        return redirect_to_login(request.GET.get("next", reverse("admin:index")), reverse("console:sign_in"))

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """End the session and redirect to the page on which people sign in, instead of the theme's page."""
        return LogoutView.as_view(next_page="admin:login")(request)

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

    def leave_out(self, package: str) -> None:
        """Take away the pages that a package brings: they show secrets, and keep to no organization."""
        pages = list(self._registry.items())
        self.unregister([model for model, page in pages if type(page).__module__.startswith(f"{package}.")])

    def watch_changes(self) -> None:
        """Record changes of all models of pages and inlines in the audit log.

        Those of `ReadOnlyAdmin` are left out: only the service writes their rows.
        """
        pages = [page for page in self._registry.values() if not isinstance(page, ReadOnlyAdmin)]
        recorder.watch(
            {page.model for page in pages} | {inline.model for page in pages for inline in page.inlines}
        )

    def get_urls(self) -> list[URLPattern]:
        """Add the URL that invitations had, for those that are still open."""
        return [
            path(
                "invitation/<uidb64>/<token>/",
                RedirectView.as_view(pattern_name="console:accept"),
                name="invitation",
            ),
            *super().get_urls(),
        ]


def _check_lookups(request: HttpRequest) -> None:
    """Raise `BadRequest` for lookups that a database would refuse, or take very long for."""
    if any(name.rpartition("__")[2] in _PATTERNS for name in request.GET):
        raise BadRequest("A list can't be filtered by a pattern.")
    if any(len(request.GET.get(name, "")) > MAX_SEARCH_CHARACTERS for name in _SEARCHES):
        raise BadRequest(f"A search takes up to {MAX_SEARCH_CHARACTERS} characters.")


def admin_page(
    request: HttpRequest, template: str, context: dict[str, Any], status: int = 200
) -> TemplateResponse:
    """Return a page of the admin that is no `ModelAdmin`'s."""
    return TemplateResponse(request, template, admin.site.each_context(request) | context, status=status)
