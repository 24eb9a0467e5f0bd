"""Signing up: the page of a mailed link makes the account, in a new organization or in a joined one."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from accounts import memberships
from accounts.audit import recorder
from accounts.forwarding import client_ip, client_network
from accounts.models import Member, Organization, Role
from accounts.models.organizations import identifier
from accounts.sign_in import attempts, email_addresses, mail, providers
from accounts.sign_in.adapters import provider_page
from accounts.sign_in.form import SignInForm
from accounts.sign_in.form_limits import TooManyAttempts, check_attempts
from accounts.sign_in.models import EmailDomain, domain_of
from chatapi.console.password_pages import AddressForm
from chatapi.console.sign_in import sign_in_page, signed_in
from usage.books import credit

PURPOSE = "sign-up"
JOIN, FOUND = "join", "found"


class SignUpForm(AddressForm):
    """The address of a new person."""

    def clean_email(self) -> str:
        """Raise `ValidationError` for an address of a domain that may not sign up."""
        address: str = self.cleaned_data["email"]
        if not _may_sign_up(address):
            raise ValidationError(
                f"Only addresses of {', '.join(settings.SIGN_UP_DOMAINS)} can sign up. Others are invited."
            )
        return address


def _may_sign_up(address: str) -> bool:
    return settings.SIGN_UP == "open" or (
        settings.SIGN_UP == "domain" and domain_of(address) in settings.SIGN_UP_DOMAINS
    )


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def sign_up(request: HttpRequest) -> HttpResponse:
    """Mail a link to an address; only the mail tells whether there is an account already."""
    if settings.SIGN_UP not in ("open", "domain"):
        raise Http404("Nobody signs up here.")
    form = SignUpForm(request)
    if not form.is_valid():
        return render(request, "console/sign_up.html", {"form": form}, status=form.status)
    address = form.cleaned_data["email"]
    provider = providers.of_address(address)
    if provider is not None and provider.is_required:
        return provider_page(request, provider)
    if email_addresses.is_taken(address):
        url = mail.absolute_url(request, reverse("console:forgotten"))
        is_sent = mail.send("account_exists", address, url=url, host=mail.host(request))
    else:
        path = reverse("console:confirm_sign_up", args=[email_addresses.sign(PURPOSE, {"email": address})])
        url = mail.absolute_url(request, path)
        is_sent = mail.send("sign_up", address, url=url, host=mail.host(request))
    return render(request, "console/mail_sent.html", {"address": address, "is_sent": is_sent})


class PlaceForm(forms.Form):
    """A new person's password, and the organization that they found or join."""

    place = forms.ChoiceField(label="Organization", widget=forms.RadioSelect, choices=[(FOUND, "A new one")])
    name = Organization._meta.get_field("name").formfield(
        label="Name of your organization",
        required=False,
        help_text="Such as your company's name.",
        validators=[identifier],
    )
    password = forms.CharField(
        strip=False, max_length=256, widget=forms.PasswordInput({"autocomplete": "new-password"})
    )
    status = 200

    def __init__(self, request: HttpRequest, person: User, domain: EmailDomain | None) -> None:
        super().__init__(request.POST or None, initial={"place": JOIN if domain else FOUND})
        self.request, self.person = request, person
        if domain is None:
            del self.fields["place"]
        else:
            choice = (JOIN, f"{domain.organization}, as {domain.joins_as}")
            field: Any = self.fields["place"]
            field.choices = [choice, (FOUND, "A new one")]

    def clean(self) -> dict[str, Any]:
        """Check the password and the name, and count the attempt: its errors tell which names exist."""
        data: dict[str, Any] = self.cleaned_data
        try:
            check_attempts(attempts.count_sign_in, self.person.email, client_network(self.request))
        except TooManyAttempts as refusal:
            self.status = refusal.status
            raise
        try:
            validate_password(data.get("password", ""), self.person)
        except ValidationError as error:
            self.add_error("password", error)
        if self.founds and "name" in data:
            if not data["name"]:
                self.add_error("name", "Enter a name.")
            elif Organization.objects.filter(name__iexact=data["name"]).exists():
                self.add_error("name", "This name is taken. To join an organization, ask its owner.")
        return data

    @property
    def founds(self) -> bool:
        """Return whether the person makes a new organization."""
        return bool(self.cleaned_data.get("place", FOUND) == FOUND)


class RepeatedForm(SignInForm):
    """The password of a form that was sent again after it had made the account."""

    error_messages = SignInForm.error_messages | {
        "invalid_login": "This address has an account already, with another password. "
        "Sign in, or choose a new password."
    }


@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@csrf_exempt  # signing in changes the token, so a repeated form has an old one; `_start` is protected
def confirm(request: HttpRequest, token: str) -> HttpResponse:
    """Make the account of a confirmed address with its place in an organization, and sign in.

    Two presses of the button have the same result, in whichever order they are served.
    """
    content = email_addresses.read(PURPOSE, token)
    address = content["email"] if content else ""
    if not content or not _may_sign_up(address):
        return _useless(request)
    if email_addresses.owner_of(address) == request.user:
        return redirect("console:home")
    response: HttpResponse = csrf_protect(_start)(request, address)
    return response


def _start(request: HttpRequest, address: str) -> HttpResponse:
    provider = providers.of_address(address)
    if provider is not None and provider.is_required:  # perhaps since the mail was sent
        return provider_page(request, provider)
    if email_addresses.is_taken(address):
        return _sign_in_again(request, address) if request.method == "POST" else _useless(request)
    person = User(username=address, email=address)
    domain = _joinable(address)
    form = PlaceForm(request, person, domain)
    if form.is_valid():
        try:
            _give_place(request, form, domain)
            return signed_in(request, person)
        except IntegrityError:
            form.add_error(None, "This name was taken just now.")
    if form.is_bound and email_addresses.is_taken(address):
        return _sign_in_again(request, address)
    context = {"form": form, "address": address}
    return render(request, "console/confirm_sign_up.html", context, status=form.status)


def _useless(request: HttpRequest) -> HttpResponse:
    return render(request, "console/choose_password.html", {"validlink": False}, status=404)


def _sign_in_again(request: HttpRequest, address: str) -> HttpResponse:
    """Sign in by the password of a repeated form, counted and checked as on the sign-in page."""
    form = RepeatedForm(request, {"username": address, "password": request.POST.get("password", "")})
    return signed_in(request, form.get_user()) if form.is_valid() else sign_in_page(request, form)


def _joinable(address: str) -> EmailDomain | None:
    """Return the approved domain of the address, if people with an address of it may join."""
    rows = EmailDomain.objects.filter(domain=domain_of(address), approved_at__isnull=False)
    return rows.exclude(joins_as="").select_related("organization").first()


@transaction.atomic
def _give_place(request: HttpRequest, form: PlaceForm, domain: EmailDomain | None) -> None:
    """Save the person and their membership. A new organization must have credit before it can spend."""
    person = form.person
    person.set_password(form.cleaned_data["password"])
    person.save()
    email_addresses.confirm(person, person.email)
    actor = recorder.Actor(person.pk, person.get_username(), client_ip(request))
    with recorder.acting(lambda: actor):
        if form.founds or domain is None:
            organization = Organization.objects.create(name=form.cleaned_data["name"])
            credit.require(organization)
            role = Role.OWNER
        else:
            organization, role = domain.organization, Role(domain.joins_as)
        memberships.join(Member(organization=organization, user=person, role=role))
