"""Signing in and out, and the way to the first page."""

from django.contrib.auth import logout
from django.contrib.auth.views import LoginView, redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import access
from accounts.models import Organization
from accounts.sign_in.form import SignInForm
from chatapi.console.tenancy import MAX_CHOICES, Console, page
from usage.models import Generation


class SignIn(LoginView):
    """The sign-in form, with the limits on attempts that the admin's form has."""

    template_name = "console/sign_in.html"
    authentication_form = SignInForm
    next_page = "console:home"

    def form_invalid(self, form: SignInForm) -> HttpResponse:  # type: ignore[override]
        """Show the form again; its status says why the person was refused."""
        response = super().form_invalid(form)
        response.status_code = form.status
        return response


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    logout(request)
    return redirect("console:sign_in")


@require_safe
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """Redirect to the person's only organization, or let them choose one."""
    if not access.may_enter(request.user):
        return redirect_to_login(request.get_full_path(), reverse("console:sign_in"))
    rows = list(access.seen_by(request.user, Organization.objects.order_by("name"))[: MAX_CHOICES + 1])
    if len(rows) == 1:
        return redirect("console:home_of", rows[0].pk)
    context = {"organizations": rows[:MAX_CHOICES], "has_more": len(rows) > MAX_CHOICES}
    return render(request, "console/choose.html", context)


@require_safe
@page("accounts.view_organization")
def home_of(request: HttpRequest, console: Console) -> HttpResponse:
    """Redirect to Start until there is a request, then to the Overview."""
    has_requests = Generation.objects.filter(organization=console.organization).exists()
    return redirect(console.url("overview" if has_requests else "start"))
