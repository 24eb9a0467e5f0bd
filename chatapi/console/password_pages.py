"""Choosing a password: by the link of an invitation, or by a mailed link for a forgotten one."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.auth.tokens import default_token_generator
from django.contrib.auth.views import INTERNAL_RESET_SESSION_TOKEN, PasswordResetConfirmView
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from accounts import acceptance, invitations, memberships
from accounts.audit import recorder
from accounts.forwarding import client_network
from accounts.models import IS_PLACEHOLDER, Member
from accounts.sign_in import attempts, change_mail, email_addresses, mail, providers
from accounts.sign_in.adapters import provider_page
from accounts.sign_in.form_limits import TooManyAttempts, check_attempts
from chatapi.console.sign_in import signed_in

MAX_ACCOUNTS = 3
_HAS_ACCOUNT = (
    "{} has an account or another invitation already: sign in to that account, or accept that invitation, "
    "and then open this link again."
)


class AddressForm(forms.Form):
    """An e-mail address to which mail is sent; the number of mails is limited."""

    email = forms.EmailField(
        label="E-mail address",
        max_length=email_addresses.MAX_CHARS,
        widget=forms.EmailInput({"autocomplete": "email", "autofocus": True}),
    )
    status = 200

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request.POST or None)
        self.request = request

    def clean(self) -> dict[str, Any]:
        """Turn the address into small letters, and count the mail to it."""
        data: dict[str, Any] = self.cleaned_data
        if "email" in data:
            data["email"] = data["email"].lower()
            try:
                check_attempts(attempts.count_mail, data["email"], client_network(self.request))
            except TooManyAttempts as refusal:
                self.status = refusal.status
                raise
        return data


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def forgotten(request: HttpRequest) -> HttpResponse:
    """Mail a link for another password; only the mail tells whether there is an account."""
    form = AddressForm(request)
    if not settings.SENDS_EMAIL or not form.is_valid():
        context = {"form": form, "sends_email": settings.SENDS_EMAIL}
        return render(request, "console/forgotten.html", context, status=form.status)
    address = form.cleaned_data["email"]
    links = [_reset_link(request, person) for person in _people(address)]
    is_sent = mail.send("new_password", address, links=links, host=mail.host(request))
    return render(request, "console/mail_sent.html", {"address": address, "is_sent": is_sent})


def _people(address: str) -> list[User]:
    """Return the owner of this address or, if nobody has confirmed it, the people who have it.

    Inactive people, and those who must sign in through a provider, are left out.
    """
    owner = email_addresses.owner_of(address)
    same = User.objects.filter(email__iexact=address).exclude(IS_PLACEHOLDER)
    people = [owner] if owner else same.order_by("pk")[:MAX_ACCOUNTS]
    # A database may take "ı" and "I" for one letter, but the typed address may be a stranger's mailbox.
    people = [person for person in people if person.email.lower() == address]
    return [person for person in people if person.is_active and providers.required_for(person) is None]


def mail_reset(request: HttpRequest, member: Member) -> str:
    """Mail a link for another password to the member's confirmed address, as the owner who is signed in asks;
    the link is in the mail only. Return why there is no mail, or "".
    """
    person = member.user
    if not person.is_active or email_addresses.owner_of(person.email) != person:
        return (
            f"{person} has no confirmed address and gets no mail. They can ask for a link at “Forgotten your "
            "password?”; else ask an operator."
        )
    provider = providers.required_for(person)
    if provider is not None:
        # Perhaps at that of another organization, which its members need not know.
        return f"{person} signs in at an identity provider, without a password."
    try:
        check_attempts(attempts.count_mail, person.email.lower(), client_network(request))
    except TooManyAttempts as refusal:
        return refusal.messages[0]
    recorder.record("mailed a link for a new password", member)
    context = {"links": [_reset_link(request, person)], "owner": request.user, "member": member}
    is_sent = mail.send("new_password", person.email, host=mail.host(request), **context)
    return "" if is_sent else "The mail could not be sent."


def _reset_link(request: HttpRequest, person: User) -> dict[str, str]:
    place = urlsafe_base64_encode(force_bytes(person.pk))
    path = reverse("console:new_password", args=[place, default_token_generator.make_token(person)])
    return {"name": person.get_username(), "url": mail.absolute_url(request, path)}


class ChosenPassword(PasswordResetConfirmView):
    """The page of a link at which a person chooses a password."""

    template_name = "console/choose_password.html"

    @property
    def token(self) -> str:
        """Return the link's token, which Django keeps in the session instead of the URL."""
        return str(self.request.session.get(INTERNAL_RESET_SESSION_TOKEN, ""))

    def save(self, form: Any, *, is_mailed: bool) -> User | None:
        """Save the password, and confirm the address if the link was mailed; the link no longer works.

        Returns None if the link has ended since the request began, for example because the invitation was
        withdrawn. A second press at the same time, with the password that the first has set, succeeds.
        """
        chosen = form.save(commit=False)  # Hashing takes half a second, so it is done before the lock.
        with transaction.atomic():
            person: User | None = User.objects.select_for_update().filter(pk=chosen.pk).first()
            if person is None:
                return None
            is_first = self.token_generator.check_token(person, self.token)
            if is_first:
                if not acceptance.is_invited(person):
                    change_mail.notify(person, change_mail.PASSWORD, by_link=True)
                person.password = chosen.password
                person.save(update_fields=["password"])
                if is_mailed:
                    email_addresses.confirm(person, person.email)
        if not is_first and not person.check_password(form.cleaned_data["new_password1"]):
            return None
        del self.request.session[INTERNAL_RESET_SESSION_TOKEN]
        return person

    def ended(self) -> HttpResponse:
        """Return the page of a link that does not work any more."""
        self.validlink = False
        return self.render_to_response(self.get_context_data(), status=404)


class NewPassword(ChosenPassword):
    """The page of a mailed link, which works until a password is chosen by it."""

    def form_valid(self, form: Any) -> HttpResponse:
        """Save the password; the mail has confirmed the address."""
        if self.save(form, is_mailed=True) is None:
            return self.ended()
        messages.success(self.request, "Your password is set. Sign in with it.")
        return redirect("console:sign_in")


class Invitation(ChosenPassword):
    """The page of an invitation's link: it names organization, role and sender, and signs the person in."""

    token_generator = invitations.AnySender()

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the page that leads to the identity provider, if the organization requires it."""
        provider = providers.required_for(self.user) if self.user and self.validlink else None
        if provider is not None:
            return provider_page(request, provider)
        return super().get(request, *args, **kwargs)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Accept the invitation with the account that is signed in, or choose a password."""
        if "join" not in request.POST:
            return super().post(request, *args, **kwargs)
        place, person = self.place, request.user
        if (
            place is None
            or not person.is_authenticated
            or self.obstacle
            or providers.required_for(place.user) is not None
        ):
            return self.get(request, *args, **kwargs)
        with transaction.atomic():
            invited = User.objects.select_for_update().filter(pk=place.user_id).first()
            is_valid = invited is not None and self.token_generator.check_token(invited, self.token)
            if invited is None or not (is_valid and invited.is_active):
                return self.ended()
            try:
                invitations.accept(person, invited, self.token)
            except ValidationError as error:
                messages.error(request, error.messages[0])
                return redirect("console:home")
        del request.session[INTERNAL_RESET_SESSION_TOKEN]
        own = Member.objects.select_related("organization", "own_role").get(
            user=person, organization=place.organization_id
        )
        messages.success(request, f"You are now {own.role_name} of {memberships.sees(own)}.")
        return redirect("console:home_of", place.organization_id)

    @property
    def place(self) -> Member | None:
        """Return the membership that the link is for; None of a link for a person who has accepted."""
        if not self.validlink or self.user is None or not acceptance.is_invited(self.user):
            return None
        return self.user.memberships.select_related("organization", "own_role").first()

    @property
    def obstacle(self) -> str | None:
        """Return why the account that is signed in can't accept the invitation; None if nobody is."""
        if not self.request.user.is_authenticated or self.user is None:
            return None
        return invitations.obstacle(self.request.user, self.user, self.token)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the membership that the link is for, the sender's name, and how the visitor can accept."""
        context = super().get_context_data(**kwargs)
        if (place := self.place) is not None:
            context |= {
                "place": place,
                "sees": memberships.sees(place),
                "sender": invitations.sender_named(self.token, place),
                "obstacle": self.obstacle,
            }
        return context

    def form_valid(self, form: Any) -> HttpResponse:
        """Save the password and sign in; refuse a password where the address has an account."""
        is_mailed = invitations.confirms_address(self.token)
        with transaction.atomic():
            # Locked, because another request may accept or withdraw the invitation now.
            invited = User.objects.select_for_update().filter(pk=form.user.pk).first()
            if invited is not None and not acceptance.take_name(invited, is_mailed=is_mailed):
                form.add_error(None, _HAS_ACCOUNT.format(invited.email))
                return self.form_invalid(form)
        person = self.save(form, is_mailed=is_mailed)
        return self.ended() if person is None else signed_in(self.request, person)
