"""Decides which accounts an organization's identity provider may sign in, and with which role.

A provider vouches for addresses of its organization's approved domains only, and only for accounts whose own
address is one of them. So no organization can take over an account with an address of somebody else's domain.
"""

from contextlib import suppress
from typing import Any, Protocol

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone

from accounts import acceptance, memberships, roles
from accounts.audit import recorder
from accounts.models import IS_PLACEHOLDER, Member, Role
from accounts.sign_in import email_addresses
from accounts.sign_in.models import EmailDomain, IdentityProvider, domain_of

_ENDED = "Your invitation has ended. Ask an operator of this service for another link."


class Answer(Protocol):
    """What a provider answers about a person who signs in, in any protocol."""

    @property
    def address(self) -> str:
        """Return the person's e-mail address in small letters; any text if there is none."""

    def is_from(self, provider: IdentityProvider) -> bool:
        """Return whether this provider, as its row is now, has given the answer."""

    def doubt(self, provider: IdentityProvider) -> str | None:
        """Return why the address may not be the person's, though its domain is the provider's."""

    def groups(self, provider: IdentityProvider) -> set[str]:
        """Return the names of the person's groups."""


class Refused(Exception):
    """The provider's answer lets nobody in. The text is for the person."""


def of_address(address: str) -> IdentityProvider | None:
    """Return the provider of the organization that has the address's domain."""
    owned = EmailDomain.objects.filter(domain=domain_of(address), approved_at__isnull=False)
    return (
        IdentityProvider.objects.filter(organization__in=owned.values("organization"))
        .select_related("organization")
        .first()
    )


def required_for(person: Any) -> IdentityProvider | None:
    """Return the provider at which the person has to sign in, if one of their organizations says so."""
    if person.is_staff or person.is_superuser:
        return None
    provider = of_address(person.email)
    if provider is None or not provider.is_required:
        return None
    is_member = Member.objects.filter(user=person, organization=provider.organization_id).exists()
    return provider if is_member else None


def lock(provider_id: int, answer: Answer) -> IdentityProvider:
    """Return the provider, locked in the transaction.

    Raises `Refused` unless the answer is from it: another provider may have taken its place since the sign-in
    began.
    """
    rows = IdentityProvider.objects.select_for_update(of=("self",), no_key=True)
    row = rows.select_related("organization").filter(pk=provider_id).first()
    if row is None or not answer.is_from(row):
        raise Refused("The identity provider was changed while you signed in. Sign in again.")
    return row


def admit(provider: IdentityProvider, known: User | None, answer: Answer) -> User:
    """Return the person of this answer, and make the person a member of the organization.

    `known` is the person who used this account of the provider before. Raises `Refused`.
    """
    address = _address(provider, answer)
    with transaction.atomic():
        person = known or _person(provider, address)
        if person.is_staff or person.is_superuser:
            raise Refused("Operators of this service do not sign in through an organization's provider.")
        if domain_of(person.email) not in _domains(provider):
            raise Refused("Your account here has an address of another domain.")
        actor = recorder.Actor(None, str(provider)[:150])
        with recorder.acting(lambda: actor):
            if person.email.lower() == address:
                try:
                    acceptance.accept_at_provider(person, provider.organization_id)
                except ValidationError:
                    raise Refused(_ENDED) from None
            _give_place(provider, person, _role(provider, answer), is_first=known is None)
        if person.email.lower() == address:
            email_addresses.confirm(person, address)
        IdentityProvider.objects.filter(pk=provider.pk).update(used_at=timezone.now())
    return person


def _domains(provider: IdentityProvider) -> set[str]:
    rows = EmailDomain.objects.filter(organization=provider.organization_id, approved_at__isnull=False)
    return set(rows.values_list("domain", flat=True))


def _address(provider: IdentityProvider, answer: Answer) -> str:
    """Return the address that the provider may vouch for, in small letters."""
    address = answer.address
    try:
        validate_email(address)
    except ValidationError:
        raise Refused("The provider named no e-mail address. It must send the claim “email”.") from None
    if domain_of(address) not in _domains(provider):
        raise Refused(f"{provider.organization} may not vouch for {address}: its domain is not approved.")
    if len(address) > email_addresses.MAX_CHARS:
        raise Refused(f"Your address has more than {email_addresses.MAX_CHARS} characters.")
    if doubt := answer.doubt(provider):
        raise Refused(doubt)
    return address


def _person(provider: IdentityProvider, address: str) -> User:
    """Return the person with this confirmed address, the invited one, or a new unsaved one."""
    owner = email_addresses.owner_of(address)
    if owner is not None:
        return owner
    people = list(User.objects.filter(email__iexact=address).exclude(IS_PLACEHOLDER)[:2])
    if len(people) == 1 and _is_invited_here(provider, people[0]):
        return people[0]
    # Else any organization could keep people from their own one's provider, by inviting them first.
    if len(people) == 1 and people[0].username == address and acceptance.set_aside(people[0]):
        people = []
    # Somebody else may have entered this address in their account.
    if people or User.objects.filter(username=address).exists():
        raise Refused(
            f"There is an account with the address {address}, which is not confirmed. Sign in to it with its "
            "password and confirm the address, or ask an operator."
        )
    if settings.SIGN_UP == "closed":
        raise Refused("Only an operator of this service adds new people.")
    person = User(username=address, email=address)
    person.set_unusable_password()
    return person


def _is_invited_here(provider: IdentityProvider, person: User) -> bool:
    places = Member.objects.filter(user=person).values_list("organization", flat=True)
    return acceptance.is_invited(person) and list(places) == [provider.organization_id]


def _role(provider: IdentityProvider, answer: Answer) -> str:
    """Return the highest role of the person's groups, or ""."""
    if not provider.groups_claim:
        return ""
    groups = answer.groups(provider)
    given = [Role(role) for group, role in provider.group_roles.items() if group in groups]
    return next((role for role in reversed(roles.givable(Role.OWNER)) if role in given), "")


def _give_place(provider: IdentityProvider, person: User, role: str, *, is_first: bool) -> None:
    """Make the person a member, or give them the role of their groups. Raises `Refused`."""
    place = person.pk and Member.objects.filter(user=person, organization=provider.organization_id).first()
    # Somebody who was removed becomes a member again only if a group of theirs has a role.
    if not role and (provider.groups_claim if place else is_first):
        role = provider.default_role
    if not role and (provider.groups_claim or not place):
        raise Refused(
            f"None of your groups has a place in {provider.organization}, and you have no open invitation. "
            "Ask its owner."
        )
    if not place:
        memberships.join(Member(organization=provider.organization, user=person, role=role))
    elif role and place.own_role_id is None and role != place.role:
        # The only owner stays one, also if the groups give another role. A limit to projects stays, too:
        # groups do not know of it, so none of them gives a limited member a role above member. Nor do they
        # know of own roles, which stay as well.
        with suppress(ValidationError):
            memberships.change_role(place, role)
