"""Signing in and out, and the redirects to the first page."""

from allauth.account.internal.flows.login import perform_password_login
from allauth.account.models import Login
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import acceptance, access
from accounts.sign_in import providers
from accounts.sign_in.adapters import provider_page
from accounts.sign_in.form import SignInForm
from accounts.sign_in.models import IdentityProvider
from chatapi.console.tenancy import MAX_CHOICES, Console, page
from usage.models import Generation


@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def sign_in(request: HttpRequest) -> HttpResponse:
    """Ask for the address and then for the password, or lead to the provider of the address's domain."""
    form = SignInForm(request)
    provider = None
    if "password" in request.POST:
        form = SignInForm(request, request.POST)
        if form.is_valid():
            return signed_in(request, form.get_user())
    elif typed := request.POST.get("username", "").replace("\0", "").strip():
        provider = providers.of_address(typed)
        if provider is not None and provider.is_required:
            return provider_page(request, provider)
        form = SignInForm(request, initial={"username": typed})
    return sign_in_page(request, form, provider)


def signed_in(request: HttpRequest, person: User) -> HttpResponse:
    """Sign in a person whose password was right, after any second factor, and redirect to the wanted page."""
    login = Login(user=person, redirect_url=next_url(request))
    response: HttpResponse = perform_password_login(request, {"username": person.get_username()}, login)
    return response


def sign_in_page(
    request: HttpRequest, form: SignInForm, provider: IdentityProvider | None = None
) -> HttpResponse:
    """Return the page with this form, and with a link to the provider if there is one."""
    context = {
        "form": form,
        "asks_for_password": bool(form.is_bound or form.initial),
        "provider": provider,
        "next": next_url(request, default=""),
        "is_closed": settings.SIGN_UP == "closed",
        "may_sign_up": settings.SIGN_UP in ("open", "domain"),
    }
    return render(request, "console/sign_in.html", context, status=form.status)


def next_url(request: HttpRequest, default: str | None = None) -> str:
    """Return the page that the visitor wanted, if it is one of ours; else the default, or the first page."""
    wanted = request.POST.get("next", request.GET.get("next", ""))
    if url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure()):
        return wanted
    return reverse("console:home") if default is None else default


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    logout(request)
    return redirect("console:sign_in")


@require_safe
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    """Redirect to the person's only organization, or let them choose one."""
    if not access.may_sign_in(request.user):
        if request.user.is_authenticated and acceptance.may_sign_in(request.user):
            messages.info(request, "Open the link of your invitation again to join the organization.")
        return redirect_to_login(request.get_full_path(), reverse("console:sign_in"))
    rows = list(access.organizations_in_console(request.user)[: MAX_CHOICES + 1])
    if len(rows) == 1:
        return redirect("console:home_of", rows[0].pk)
    context = {"organizations": rows[:MAX_CHOICES], "has_more": len(rows) > MAX_CHOICES}
    context["is_operator"] = access.is_operator(request.user)
    return render(request, "console/choose.html", context)


@require_safe
@page("accounts.view_organization", keeps_to_projects=True)
def home_of(request: HttpRequest, console: Console) -> HttpResponse:
    """Redirect to Start until there is a request, then to the Overview, if the person may open it."""
    may_open = console.may("usage.view_hourlyusage")
    has_requests = may_open and console.rows_shown(Generation.objects.all()).exists()
    return redirect(console.url("overview" if has_requests else "start"))
