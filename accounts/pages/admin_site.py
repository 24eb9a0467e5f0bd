"""The admin's site: who may enter, how one signs in, and where who was invited chooses a password."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import BadRequest
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from unfold.sites import UnfoldAdminSite

from accounts import access
from accounts.invitations import ChoosePassword
from accounts.pages.sign_in import SignInForm


class Site(UnfoldAdminSite):
    """The theme's site, for operators and for people of organizations."""

    login_form = SignInForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Staff, and whoever belongs to an organization."""
        return access.may_enter(request.user)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The form; its status says why nobody was let in."""
        response: HttpResponse = super().login(request, extra_context)
        form = (getattr(response, "context_data", None) or {}).get("form")
        if isinstance(form, SignInForm):
            response.status_code = form.status
        return response

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Callable[..., Any]:
        """A number or a date that no column can hold, in an address or a form, is the request's fault and not ours."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            try:
                return inner(request, *args, **kwargs)
            except (OverflowError, DataError) as error:
                raise BadRequest("A number or a date in this request is out of range.") from error

        return guarded

    def get_urls(self) -> list[URLPattern]:
        """The theme's, and the one that is open to those who can't sign in yet."""
        return [path("invitation/<uidb64>/<token>/", ChoosePassword.as_view(), name="invitation"), *super().get_urls()]
