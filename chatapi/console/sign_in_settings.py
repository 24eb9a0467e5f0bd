"""How the organization's people sign in: its identity provider and its domains, for owners."""

from typing import Any

from allauth.socialaccount.models import SocialAccount
from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from accounts.audit import recorder
from accounts.forwarding import client_network
from accounts.models import Role
from accounts.pages.admin_mixins import ConstrainedForm
from accounts.roles import ADMINISTER_SIGN_IN
from accounts.sign_in import attempts
from accounts.sign_in.fetching import NotFetched
from accounts.sign_in.form_limits import TooManyAttempts, check_attempts
from accounts.sign_in.models import EmailDomain, IdentityProvider, validate_group_roles
from accounts.sign_in.openid_connect import discovery
from chatapi.console.tenancy import Console, page, render

MAX_DOMAINS = 20
# Nobody becomes an owner by an address alone.
_GIVEN_ROLES = [(role.value, role.label) for role in Role if role != Role.OWNER]
# Fields that say which client of which provider it is: for another one, people may have other ids.
_OF_CLIENT = {"issuer", "client_id"}
# Those that change what the provider is asked for, which it may refuse.
_OF_QUESTION = {"extra_scopes"}
# All others.
_OF_ANSWER = {"secret", "groups_claim", "group_roles", "default_role", "is_required"}


class ProviderForm(ConstrainedForm):
    """The provider. Validation fetches its discovery document, so that a wrong URL is noticed here."""

    secret = forms.CharField(
        label="Client secret",
        max_length=500,
        required=False,
        widget=forms.PasswordInput({"autocomplete": "off"}),
    )
    group_roles = forms.CharField(
        label="Roles of groups",
        required=False,
        max_length=20_000,
        widget=forms.Textarea({"rows": 4, "placeholder": "llm-admins = admin", "class": "code"}),
        help_text="One line each: “group = role”. The highest role counts, at each sign-in.",
    )
    default_role = forms.ChoiceField(
        label="Role of others",
        required=False,
        choices=[("", "Refuse them"), *_GIVEN_ROLES],
        help_text="The role of new people, and of people in none of the groups.",
    )
    status = 200

    class Meta:
        model = IdentityProvider
        fields = [
            "issuer", "client_id", "secret", "groups_claim", "extra_scopes", "group_roles", "default_role",
            "is_required",
        ]  # fmt: skip

    def __init__(self, data: Any, request: HttpRequest, console: Console) -> None:
        organization = console.organization
        row = IdentityProvider.objects.filter(organization=organization).first() or IdentityProvider(
            organization=organization
        )
        lines = "\n".join(f"{group} = {role}" for group, role in row.group_roles.items())
        super().__init__(data, instance=row, initial={"group_roles": lines})
        self.request, self.is_new = request, row._state.adding
        self.fields["secret"].required = self.is_new
        if not self.is_new:
            self.fields["secret"].help_text = "Empty: the one of this issuer that was entered before."

    def clean_group_roles(self) -> dict[str, str]:
        found = {}
        for line in filter(None, map(str.strip, self.cleaned_data["group_roles"].splitlines())):
            group, _, role = line.rpartition("=")
            found[group.strip()] = role.strip()
        validate_group_roles(found)
        return found

    def clean_issuer(self) -> str:
        """Raise `ValidationError` unless an OpenID Connect provider answers at this URL."""
        issuer: str = self.cleaned_data["issuer"].strip()
        if not issuer.startswith("https://"):
            raise ValidationError("Enter a URL that begins with https://.")
        if "issuer" not in self.changed_data:
            return issuer
        try:
            check_attempts(attempts.count_issuer, self.instance.pk, client_network(self.request))
        except TooManyAttempts as refusal:
            self.status = refusal.status
            raise
        try:
            discovery(issuer)
        except NotFetched as error:
            raise ValidationError(str(error)) from error
        return issuer

    def clean(self) -> dict[str, Any]:
        """Refuse to require a provider before anybody has signed in through it: it could lock everybody out.

        A new issuer needs its own secret: else the stored one would go to any server that an owner names.
        """
        data: dict[str, Any] = super().clean() or {}
        is_other = not self.is_new and "issuer" in self.changed_data and "issuer" in data
        if is_other and not data.get("secret"):
            self.add_error("secret", "Enter the secret of the other issuer.")
        if data.get("is_required") and (self.instance.used_at is None or self._must_be_proven):
            self.add_error("is_required", "First sign in through the provider, to see that it works.")
        return data

    @property
    def _must_be_proven(self) -> bool:
        """Return whether a sign-in has to show again that the provider answers."""
        return not (_OF_CLIENT | _OF_QUESTION).isdisjoint(self.changed_data)

    @transaction.atomic
    def save(self, commit: bool = True) -> Any:
        """Save the row. After a change of the provider, people are found by their addresses again."""
        row: IdentityProvider = self.instance
        # Locked, so that a sign-in in progress makes its account before the accounts are deleted.
        IdentityProvider.objects.select_for_update(no_key=True).filter(pk=row.pk).first()
        if self.cleaned_data["secret"]:
            row.enter_secret(self.cleaned_data["secret"])
        if self._must_be_proven:
            row.used_at = None
        if not _OF_CLIENT.isdisjoint(self.changed_data):
            forget_accounts(row)
        return super().save(commit)


assert sorted(ProviderForm.base_fields) == sorted([*_OF_CLIENT, *_OF_QUESTION, *_OF_ANSWER]), "a field is new"


def forget_accounts(row: IdentityProvider) -> None:
    """Delete the links between people and their accounts at the provider."""
    SocialAccount.objects.filter(provider=str(row.pk)).delete()


class DomainForm(ConstrainedForm):
    """A domain of the organization."""

    joins_as = forms.ChoiceField(
        label="People who confirm an address of it may join",
        required=False,
        choices=[("", "No"), *((value, f"as {label.lower()}") for value, label in _GIVEN_ROLES)],
    )

    class Meta:
        model = EmailDomain
        fields = ["domain", "joins_as"]
        help_texts = {"domain": "Such as example.com. The operator of this service approves it."}


@sensitive_post_parameters("secret")
@require_http_methods(["GET", "HEAD", "POST"])
@page(ADMINISTER_SIGN_IN)
def sign_in_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the provider and the domains; change the provider."""
    form = ProviderForm(request.POST or None, request, console)
    if form.is_valid():
        form.save()
        messages.success(request, "The identity provider is saved.")
        return redirect(console.url("sign_in_settings"))
    return _show(request, console, form, DomainForm(None), form.status if form.status != 200 else None)


def _show(
    request: HttpRequest, console: Console, form: Any, domain_form: Any, status: int | None = None
) -> HttpResponse:
    callback = reverse("openid_connect_callback", args=[console.organization.pk])
    context = {
        "title": "Sign-in",
        "form": form,
        "domain_form": domain_form,
        "row": None if form.is_new else form.instance,
        "callback": request.build_absolute_uri(callback),
        "domains": _domains(console),
        "role_choices": [("", "nobody"), *_GIVEN_ROLES],
    }
    has_errors = form.errors or domain_form.errors
    return render(request, console, "sign_in_settings.html", context, status or (400 if has_errors else 200))


@require_POST
@page(ADMINISTER_SIGN_IN)
def remove_provider(request: HttpRequest, console: Console) -> HttpResponse:
    """Remove the provider; people sign in with passwords again, which they may have to choose first."""
    row = IdentityProvider.objects.filter(organization=console.organization).first()
    if row is None:
        raise Http404("There is no identity provider.")
    with transaction.atomic():
        forget_accounts(row)
        row.delete()
    messages.success(request, "The identity provider is removed.")
    return redirect(console.url("sign_in_settings"))


@require_http_methods(["GET", "HEAD", "POST"])
@page(ADMINISTER_SIGN_IN)
def add_domain(request: HttpRequest, console: Console) -> HttpResponse:
    """Add a domain, which waits for an operator's approval."""
    if request.method != "POST":  # A sign-in or a conflict redirects here, the URL of a refused form.
        return redirect(console.url("sign_in_settings"))
    form = DomainForm({**request.POST.dict(), "domain": request.POST.get("domain", "").strip().lower()})
    form.instance.organization = console.organization
    if _domains(console).count() >= MAX_DOMAINS:
        form.add_error("domain", f"An organization has at most {MAX_DOMAINS} domains.")
    if form.is_valid():
        form.save()
        messages.success(request, f"{form.instance.domain} waits for the operator's approval.")
        return redirect(console.url("sign_in_settings"))
    return _show(request, console, ProviderForm(None, request, console), form)


@require_POST
@page(ADMINISTER_SIGN_IN)
def change_domain(request: HttpRequest, console: Console, domain_id: int) -> HttpResponse:
    """Store whether people with an address of the domain may join, and with which role."""
    row, role = _domain(console, domain_id), request.POST.get("joins_as", "")
    if role and role not in dict(_GIVEN_ROLES):
        raise Http404("There is no such role.")
    recorder.update(EmailDomain.objects.filter(pk=row.pk), joins_as=role)
    joins = f"may join as {role}" if role else "may not join"
    if role and row.approved_at is None:
        joins += ", once the operator has approved the domain"
    messages.success(request, f"People of {row.domain} {joins}.")
    return redirect(console.url("sign_in_settings"))


@require_POST
@page(ADMINISTER_SIGN_IN)
def remove_domain(request: HttpRequest, console: Console, domain_id: int) -> HttpResponse:
    """Remove a domain."""
    row = _domain(console, domain_id)
    row.delete()
    messages.success(request, f"{row.domain} is removed.")
    return redirect(console.url("sign_in_settings"))


def _domains(console: Console) -> Any:
    return EmailDomain.objects.filter(organization=console.organization)


def _domain(console: Console, domain_id: int) -> EmailDomain:
    row: EmailDomain | None = _domains(console).filter(pk=domain_id).first()
    if row is None:
        raise Http404("There is no such domain.")
    return row
