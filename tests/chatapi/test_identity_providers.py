"""Signing in at an organization's own identity provider: a real one, over TLS.

It signs in people of approved domains only, with the role of their groups; no organization reaches
into another one with it.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from accounts import acceptance, memberships, own_roles
from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, Role
from accounts.sign_in import email_addresses, nonces
from accounts.sign_in.adapters import SocialAccountAdapter
from accounts.sign_in.models import EmailDomain, IdentityProvider
from chatapi.console import sign_up
from chatapi.console.sign_in_settings import forget_accounts
from tests.admin_pages import client_of, text
from tests.cast import Person, join
from tests.chatapi.identity_provider import Provider, offer
from tests.chatapi.signing_in import SIGN_IN, confirmed, sign_in, who, with_password

pytestmark = pytest.mark.usefixtures("db", "counting", "trusting")


def path_of(row: IdentityProvider) -> str:
    return f"/console/sign-in/provider/{row.pk}/"


def come(
    provider: Provider, row: IdentityProvider, sub: str, client: Client | None = None, query: str = ""
) -> Any:
    """Sign in at the provider; return the answer to what it says, and the client."""
    client = client or Client()
    away = client.get(path_of(row) + query)
    assert away.status_code == 302, away.content
    assert away.headers["location"].startswith(provider.issuer)
    return client.get(provider.authorize(away.headers["location"], sub)), client


# ---- accepted people


def test_someone_new_comes_with_the_role_of_new_people(provider: Provider, acme: Organization) -> None:
    row = offer(acme, provider, "acme.example", default_role="member")
    provider.knows("1", email="Erin@acme.example", email_verified=True)
    answer, client = come(provider, row, "1", query="?next=/console/account")
    assert (answer.status_code, answer.headers["location"]) == (302, "/console/account")
    erin = User.objects.get(username="erin@acme.example")
    assert who(client) == erin.username
    assert (erin.has_usable_password(), erin.is_staff) == (False, False)
    assert Member.objects.get(user=erin).role == Role.MEMBER
    assert EmailAddress.objects.get(user=erin).verified
    assert SocialAccount.objects.get().extra_data == {}
    entry = AuditEntry.objects.get(action="created", object_type="accounts.member")
    assert (entry.actor, entry.organization_id) == ("identity provider of Acme", acme.pk)
    assert AuditEntry.objects.get(action="signed in").reason == "socialaccount"
    row.refresh_from_db()
    assert row.used_at is not None


def test_someone_comes_from_an_issuer_whose_name_ends_with_a_slash(
    provider: Provider, acme: Organization
) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    IdentityProvider.objects.update(issuer=f"{provider.issuer}/realms/acme/")
    provider.knows("4", email="erin@acme.example")
    assert who(come(provider, row, "4")[1]) == "erin@acme.example"


def test_someone_comes_again_as_the_same_person(provider: Provider, acme: Organization) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    provider.knows("2", email="erin@acme.example")
    come(provider, row, "2")
    provider.knows("2", email="erin.smith@acme.example")
    assert who(come(provider, row, "2")[1]) == "erin@acme.example"


def test_the_provider_is_asked_for_the_scopes_that_an_owner_adds(
    provider: Provider, acme: Organization
) -> None:
    row = offer(acme, provider, "acme.example", extra_scopes="groups openid  roles")
    asked = urlsplit(Client().get(path_of(row)).headers["location"]).query
    assert sorted(parse_qs(asked)["scope"][0].split()) == ["email", "groups", "openid", "profile", "roles"]


def test_an_invited_person_comes_in_their_place(
    provider: Provider, acme: Organization, alice: Person
) -> None:
    row = offer(acme, provider, "acme.example")
    client_of(alice.user).post(
        f"/console/{acme.pk}/members/invite", {"email": "erin@acme.example", "role": "admin", "sees": "all"}
    )
    provider.knows("3", email="erin@acme.example")
    assert who(come(provider, row, "3")[1]) == "erin@acme.example"
    assert Member.objects.get(user__username="erin@acme.example").role == Role.ADMIN


def test_a_person_with_the_confirmed_address_comes_as_themselves(
    provider: Provider, acme: Organization, bob: Person
) -> None:
    row = offer(acme, provider, "acme.example")
    with_password(bob.user, email="bob@acme.example")
    EmailAddress.objects.create(user=bob.user, email="bob@acme.example", verified=True)
    provider.knows("4", email="bob@acme.example")
    assert who(come(provider, row, "4")[1]) == "bob"


def test_the_second_factor_is_asked_for_after_the_provider(provider: Provider, acme: Organization) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    provider.knows("5", email="erin@acme.example")
    come(provider, row, "5")
    TOTP.activate(User.objects.get(username="erin@acme.example"), generate_totp_secret())
    answer, client = come(provider, row, "5")
    assert (answer.headers["location"], who(client)) == ("/console/sign-in/second-factor", "")
    assert "sociallogin" not in str(dict(client.session))


# ---- refused people


def refused(provider: Provider, row: IdentityProvider, sub: str, **claims: Any) -> str:
    """Return why nobody is signed in."""
    provider.knows(sub, **claims)
    answer, client = come(provider, row, sub)
    assert (answer.status_code, who(client)) == (403, "")
    (reason,) = re.findall(r'role="alert">([^<]*)<', answer.content.decode())
    return str(reason)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({}, "no e-mail address"),
        ({"email": "no address"}, "no e-mail address"),
        ({"email": "bob@umbrella.example"}, "may not vouch for bob@umbrella.example"),
        ({"email": "bob@sub.acme.example"}, "may not vouch"),
        ({"email": "bob@acme.example", "email_verified": False}, "has not confirmed"),
        ({"email": f"{'b' * 138}@acme.example"}, "more than 150 characters"),
        ({"email": "bob@acme.example"}, "None of your groups has a place"),
    ],
)
def test_a_provider_vouches_for_its_domain_only(
    provider: Provider, acme: Organization, claims: dict[str, Any], reason: str
) -> None:
    row = offer(acme, provider, "acme.example")
    assert reason in refused(provider, row, f"6-{len(reason)}-{len(claims)}", **claims)
    assert not User.objects.exists()
    assert not SocialAccount.objects.exists()


def test_a_domain_counts_only_after_its_approval(provider: Provider, acme: Organization) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    EmailDomain.objects.update(approved_at=None)
    assert "domain is not approved" in refused(provider, row, "7", email="erin@acme.example")
    assert Client().post(SIGN_IN, {"username": "erin@acme.example"}).context["provider"] is None


def test_an_identifier_that_is_too_long_is_refused_with_the_reason(
    provider: Provider, acme: Organization
) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    reason = refused(provider, row, "7" * 192, email="erin@acme.example")
    assert "the claim “sub”, has more than 191 characters" in reason
    assert not User.objects.exists()
    provider.knows("8" * 191, email="erin@acme.example")
    assert who(come(provider, row, "8" * 191)[1]) == "erin@acme.example"


def test_a_wrong_secret_signs_nobody_in(provider: Provider, acme: Organization) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    row.enter_secret("of another client")
    row.save()
    assert "did not sign you in. Try again, or ask" in refused(provider, row, "19", email="erin@acme.example")
    assert not User.objects.exists()


@pytest.mark.parametrize("rights", ["is_staff", "is_superuser"])
def test_no_provider_signs_an_operator_in(provider: Provider, acme: Organization, rights: str) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    root = User.objects.create(username="root", email="root@acme.example", **{rights: True})
    EmailAddress.objects.create(user=root, email="root@acme.example", verified=True)
    assert "Operators" in refused(provider, row, f"8-{rights}", email="root@acme.example")


def test_nobody_gets_an_account_in_which_somebody_else_wrote_their_address(
    provider: Provider, acme: Organization, charlie: Person
) -> None:
    """Charlie could otherwise wait in that account, whose password he knows, for its place in Acme."""
    row = offer(acme, provider, "acme.example", default_role="admin")
    with_password(charlie.user, email="erin@acme.example")
    assert "not confirmed" in refused(provider, row, "9", email="erin@acme.example")
    assert not Member.objects.filter(user=charlie.user, organization=acme).exists()


def test_a_provider_does_not_keep_people_whose_address_left_its_domain(
    provider: Provider, acme: Organization, charlie: Person
) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    SocialAccount.objects.create(provider=str(row.pk), uid="10", user=charlie.user)
    User.objects.filter(pk=charlie.user.pk).update(email="charlie@umbrella.example")
    assert "address of another domain" in refused(provider, row, "10", email="erin@acme.example")
    assert SocialAccount.objects.get().extra_data == {}, "what the provider says is not kept"


def test_nobody_is_tied_to_the_provider_by_a_link(
    provider: Provider, acme: Organization, charlie: Person
) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    provider.knows("11", email="erin@acme.example")
    answer, client = come(provider, row, "11", client_of(charlie.user), "?process=connect")
    assert answer.status_code == 403
    assert not SocialAccount.objects.exists()
    assert who(client) == "charlie"


def test_a_stolen_answer_opens_nothing_in_another_browser(provider: Provider, acme: Organization) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    provider.knows("12", email="erin@acme.example")
    away = Client().get(path_of(row))
    answer = Client().get(provider.authorize(away.headers["location"], "12"))
    assert answer.status_code == 403
    assert not User.objects.exists()


def asked_for(client: Client, row: IdentityProvider, query: str = "") -> dict[str, str]:
    """Return the parameters of the authorization request."""
    asked = urlsplit(client.get(path_of(row) + query).headers["location"]).query
    return {name: values[-1] for name, values in parse_qs(asked).items()}


def test_each_sign_in_has_a_nonce_and_a_code_challenge(provider: Provider, acme: Organization) -> None:
    row, client = offer(acme, provider, "acme.example"), Client()
    first, second = asked_for(client, row), asked_for(client, row, "?auth_params=nonce%3Dtheirs")
    assert len(first["nonce"]) == len(second["nonce"]) == nonces.NONCE_CHARS
    assert first["nonce"] != second["nonce"]
    assert first["code_challenge_method"] == second["code_challenge_method"] == "S256"


@pytest.mark.parametrize("nonce", ["&nonce=of-another-sign-in", ""])
def test_an_id_token_without_the_nonce_of_the_sign_in_opens_nothing(
    provider: Provider, acme: Organization, nonce: str
) -> None:
    row, client = offer(acme, provider, "acme.example", default_role="viewer"), Client()
    provider.knows("12", email="erin@acme.example")
    away = re.sub(r"&nonce=\w+", nonce, client.get(path_of(row)).headers["location"])
    answer = client.get(provider.authorize(away, "12"))
    assert answer.status_code == 403
    assert "belongs to another sign-in" in answer.content.decode()
    assert not User.objects.exists()


def test_a_sign_in_that_an_older_release_began_ends_well(provider: Provider, acme: Organization) -> None:
    row, client = offer(acme, provider, "acme.example", default_role="viewer"), Client()
    provider.knows("12", email="erin@acme.example")
    away = re.sub(r"&nonce=\w+", "", client.get(path_of(row)).headers["location"])
    session = client.session
    for state, *_ in session["socialaccount_states"].values():
        del state["nonce"]
    session.save()
    client.get(provider.authorize(away, "12"))
    assert who(client) == "erin@acme.example"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_no_other_site_begins_a_sign_in(provider: Provider, acme: Organization, site: str) -> None:
    row = offer(acme, provider, "acme.example")
    answer = Client(headers={"sec-fetch-site": site}).get(path_of(row))
    leads_to_provider = answer.headers["location"].startswith(provider.issuer)
    assert leads_to_provider == (site in ("same-origin", "none"))
    assert leads_to_provider or answer.headers["location"] == SIGN_IN


def test_where_sign_up_is_closed_nobody_new_comes(
    provider: Provider, acme: Organization, settings: Settings
) -> None:
    settings.SIGN_UP = "closed"
    row = offer(acme, provider, "acme.example", default_role="viewer")
    assert "Only an operator" in refused(provider, row, "13", email="erin@acme.example")


def before_the_answer_is_used(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do that once, in the middle of the next sign-in."""
    use, acts = SocialAccountAdapter.pre_social_login, [act]

    def act_first(self: SocialAccountAdapter, request: Any, sociallogin: Any) -> None:
        if acts:
            acts.pop()()
        use(self, request, sociallogin)

    monkeypatch.setattr(SocialAccountAdapter, "pre_social_login", act_first)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("change", [{"client_id": "another"}, {"issuer": "https://localhost"}, None])
def test_nobody_comes_from_a_provider_that_is_changed_meanwhile(
    provider: Provider, acme: Organization, monkeypatch: pytest.MonkeyPatch, change: Any, is_known: bool
) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    provider.knows("17", email="erin@acme.example")
    if is_known:
        come(provider, row, "17")

    def change_the_provider() -> None:
        forget_accounts(row)
        if change:
            IdentityProvider.objects.update(used_at=None, **change)
        else:
            IdentityProvider.objects.all().delete()

    before_the_answer_is_used(monkeypatch, change_the_provider)
    assert "was changed while you signed in" in refused(provider, row, "17", email="erin@acme.example")
    assert not SocialAccount.objects.exists()
    assert not IdentityProvider.objects.filter(used_at__isnull=False).exists()


def test_two_first_sign_ins_at_once_are_one_account(
    provider: Provider, acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = offer(acme, provider, "acme.example", default_role="viewer")
    provider.knows("18", email="erin@acme.example")
    before_the_answer_is_used(monkeypatch, lambda: come(provider, row, "18"))
    assert who(come(provider, row, "18")[1]) == "erin@acme.example"
    assert SocialAccount.objects.get().extra_data == {}


# ---- roles


@pytest.mark.parametrize(
    ("groups", "role"),
    [(["users"], "viewer"), (["users", "admins"], "admin"), ("admins", "admin"), (["none", 7], "member")],
)
def test_the_highest_role_of_the_groups_counts_at_each_sign_in(
    provider: Provider, acme: Organization, groups: Any, role: str
) -> None:
    mapping = {"users": "viewer", "admins": "admin"}
    row = offer(
        acme, provider, "acme.example", groups_claim="groups", group_roles=mapping, default_role="member"
    )
    erin = join("erin", Role.OWNER, acme, "default").user
    User.objects.filter(pk=erin.pk).update(email="erin@acme.example")
    EmailAddress.objects.create(user=erin, email="erin@acme.example", verified=True)
    join("alice", Role.OWNER, acme, "default")
    sub = f"14-{role}-{len(groups)}"
    provider.knows(sub, email="erin@acme.example", groups=groups)
    assert who(come(provider, row, sub)[1]) == "erin"
    assert Member.objects.get(user=erin).role == role
    entry = AuditEntry.objects.get(action="changed", object_type="accounts.member")
    assert (entry.actor, entry.changes["role"]) == ("identity provider of Acme", ["owner", role])


def test_the_only_owner_stays_one(provider: Provider, acme: Organization, alice: Person) -> None:
    row = offer(acme, provider, "acme.example", groups_claim="groups", group_roles={"users": "viewer"})
    with_password(alice.user, email="alice@acme.example")
    EmailAddress.objects.create(user=alice.user, email="alice@acme.example", verified=True)
    provider.knows("15", email="alice@acme.example", groups=["users"])
    assert who(come(provider, row, "15")[1]) == "alice"
    assert Member.objects.get(user=alice.user).role == Role.OWNER


@pytest.mark.parametrize(("group", "role"), [("users", "member"), ("admins", "viewer")])
def test_groups_neither_lift_a_limit_nor_give_a_role_above_it(
    provider: Provider, acme: Organization, bob: Person, group: str, role: str
) -> None:
    mapping = {"users": "member", "admins": "admin"}
    row = offer(acme, provider, "acme.example", groups_claim="groups", group_roles=mapping)
    User.objects.filter(pk=bob.user.pk).update(email="bob@acme.example")
    EmailAddress.objects.create(user=bob.user, email="bob@acme.example", verified=True)
    memberships.change_place(Member.objects.get(user=bob.user), Role.VIEWER, [bob.project])
    provider.knows(f"17-{group}", email="bob@acme.example", groups=[group])
    assert who(come(provider, row, f"17-{group}")[1]) == "bob"
    member = Member.objects.get(user=bob.user)
    assert (member.role, member.is_limited, [*member.projects.all()]) == (role, True, [bob.project])


def test_an_own_role_stays_whatever_the_groups_give(
    provider: Provider, acme: Organization, bob: Person
) -> None:
    row = offer(acme, provider, "acme.example", groups_claim="groups", group_roles={"admins": "admin"})
    confirmed(bob, "bob@acme.example")
    role = own_roles.create(acme.pk, "Finance", "", own_roles.with_choices(["statements"]))
    memberships.change_role(Member.objects.get(user=bob.user), role)
    provider.knows("19", email="bob@acme.example", groups=["admins"])
    assert who(come(provider, row, "19")[1]) == "bob"
    assert Member.objects.get(user=bob.user).own_role == role
    # Else the next sign-in would make the person an admin.
    assert not memberships.remove(Member.objects.get(user=bob.user))
    member = Member.objects.get(user=bob.user)
    assert (member.own_role, member.is_limited, [*member.projects.all()]) == (None, True, [])


def test_a_person_who_is_invited_again_comes_in_the_place_of_the_invitation(
    provider: Provider, acme: Organization, alice: Person, charlie: Person
) -> None:
    """Charlie of Umbrella has a confirmed address of Acme's domain, and is invited to one project of Acme."""
    row = offer(acme, provider, "acme.example", default_role="member")
    confirmed(charlie, "charlie@acme.example")
    named = {"sees": "only", "projects": [str(alice.project.pk)]}
    sent = {"email": "charlie@acme.example", "role": "viewer", **named}
    client_of(alice.user).post(f"/console/{acme.pk}/members/invite", sent)
    provider.knows("18", email="charlie@acme.example")
    assert who(come(provider, row, "18")[1]) == "charlie"
    member = Member.objects.get(user=charlie.user, organization=acme)
    assert (member.role, member.is_limited, [*member.projects.all()]) == ("viewer", True, [alice.project])
    assert User.objects.filter(email="charlie@acme.example").count() == 1


def test_an_invitation_elsewhere_keeps_nobody_from_their_own_provider(
    provider: Provider, acme: Organization, charlie: Person
) -> None:
    """Anybody with an organization could otherwise lock new people of other ones out."""
    row = offer(acme, provider, "acme.example", default_role="member")
    sent = {"email": "erin@acme.example", "role": "viewer", "sees": "all"}
    elsewhere = charlie.project.organization
    client = client_of(charlie.user)
    shown = client.post(f"/console/{elsewhere.pk}/members/invite", sent, follow=True).content.decode()
    (link,) = re.findall(r"http://testserver(/console/invitation/[^\"<]+)", shown)
    provider.knows("20", email="erin@acme.example")
    erin = come(provider, row, "20")[1]
    assert who(erin) == "erin@acme.example"
    mine = Member.objects.filter(user__username="erin@acme.example")
    assert [place.organization for place in mine] == [acme], "the other invitation waits"
    assert Member.objects.get(organization=elsewhere, user__email="erin@acme.example").name == sent["email"]
    erin.post(erin.get(link, follow=True).redirect_chain[-1][0], {"join": "yes"})
    assert {place.organization for place in mine.all()} == {acme, elsewhere}
    assert User.objects.filter(email="erin@acme.example").count() == 1


@pytest.mark.parametrize("default_role", ["", "member"])
@pytest.mark.parametrize("username", ["erin@acme.example", "erin", "charlie"])
def test_an_expired_invitation_gives_no_place_at_the_provider(
    provider: Provider, acme: Organization, alice: Person, charlie: Person, username: str, default_role: str
) -> None:
    """Erin is new, by her address or by another name; Charlie has an account with a confirmed address."""
    row, address = offer(acme, provider, "acme.example", default_role=default_role), "erin@acme.example"
    if username == "charlie":
        address = "charlie@acme.example"
        confirmed(charlie, address)
        User.objects.filter(pk=charlie.user.pk).update(last_login=timezone.now())
    sent = {"name": "erin" if username == "erin" else "", "email": address, "role": "admin", "sees": "all"}
    client_of(alice.user).post(f"/console/{acme.pk}/members/invite", sent)
    invited = acceptance.pending(Member.objects.filter(organization=acme))
    assert invited.update(created_at=timezone.now() - timedelta(days=3, seconds=1)) == 1
    if not default_role:
        assert "no open invitation" in refused(provider, row, "3", email=address)
        assert invited.count() == 1
        return
    provider.knows("3", email=address)
    assert who(come(provider, row, "3")[1]) == username
    (member,) = Member.objects.filter(organization=acme, user__email=address)
    assert (member.name, member.role) == (username, "member")


def test_the_expired_invitation_of_the_only_owner_waits_for_another_link(
    provider: Provider, acme: Organization, alice: Person
) -> None:
    row = offer(acme, provider, "acme.example", default_role="member")
    person = User.objects.create(username="erin@acme.example", email="erin@acme.example", password="!")
    Member.objects.all().delete()
    Member.objects.create(organization=acme, user=person, role=Role.OWNER)
    Member.objects.update(created_at=timezone.now() - timedelta(days=4))
    assert "invitation has ended" in refused(provider, row, "3", email=person.email)


def test_a_removed_member_comes_back_by_a_group_only(
    provider: Provider, acme: Organization, alice: Person
) -> None:
    row = offer(acme, provider, "acme.example", default_role="member")
    provider.knows("16", email="erin@acme.example")
    come(provider, row, "16")
    Member.objects.filter(user__username="erin@acme.example").delete()
    assert "None of your groups" in refused(provider, row, "16", email="erin@acme.example")


# ---- required


@pytest.fixture
def required(provider: Provider, acme: Organization, bob: Person) -> IdentityProvider:
    """Acme requires its provider; Bob has a password, too."""
    with_password(bob.user, email="bob@acme.example")
    EmailAddress.objects.create(user=bob.user, email="bob@acme.example", verified=True)
    return offer(acme, provider, "acme.example", is_required=True, used_at=timezone.now())


def test_an_address_of_the_domain_leads_to_the_provider(required: IdentityProvider) -> None:
    for address in ("bob@acme.example", "Nobody@Acme.example"):
        answer = Client().post(SIGN_IN, {"username": address})
        assert f'href="{path_of(required)}"' in answer.content.decode()
    assert 'type="password"' in Client().post(SIGN_IN, {"username": "bob@umbrella.example"}).content.decode()


def test_a_password_is_not_enough(required: IdentityProvider, provider: Provider, mailing: None) -> None:
    client = Client()
    for name in ("bob", "bob@acme.example"):
        answer = sign_in(client, name)
        assert "requires that you sign in there" in answer.content.decode()
        assert who(client) == ""
    assert client.get("/console/").status_code == 302
    provider.knows("17", email="bob@acme.example")
    assert who(come(provider, required, "17")[1]) == "bob"


def test_no_mail_sets_a_password_that_is_not_enough(
    required: IdentityProvider, mailing: None, mailoutbox: list[Any]
) -> None:
    Client().post("/console/password/forgotten", {"email": "bob@acme.example"})
    assert mailoutbox[0].subject == "No account at testserver has your address"


def test_an_older_link_to_sign_up_leads_to_the_provider(
    required: IdentityProvider, settings: Settings
) -> None:
    settings.SIGN_UP = "open"
    token = email_addresses.sign(sign_up.PURPOSE, {"email": "new@acme.example"})
    client, path = Client(), reverse("console:confirm_sign_up", args=[token])
    answers = (client.get(path), client.post(path, {"name": "Shadow", "password": "correct horse battery"}))
    for answer, leads_on in zip(answers, (False, True), strict=True):
        assert "requires that you sign in there" in answer.content.decode()
        assert ('http-equiv="refresh"' in answer.content.decode()) == leads_on
    assert who(client) == ""
    assert not User.objects.filter(username="new@acme.example").exists()


def test_guests_and_operators_sign_in_as_before(
    required: IdentityProvider, acme: Organization, charlie: Person
) -> None:
    with_password(charlie.user, email="charlie@umbrella.example")
    Member.objects.create(organization=acme, user=charlie.user, role=Role.VIEWER)
    with_password(User.objects.create_superuser("root", email="root@acme.example"))
    for name in ("charlie", "root"):
        client = Client()
        sign_in(client, name)
        assert who(client) == name


def test_a_provider_that_is_not_required_is_offered(required: IdentityProvider) -> None:
    IdentityProvider.objects.update(is_required=False)
    shown = (
        Client().post(SIGN_IN, {"username": "bob@acme.example", "next": "/console/account"}).content.decode()
    )
    assert 'type="password"' in shown
    assert f'href="{path_of(required)}?next=/console/account"' in shown
    client = Client()
    sign_in(client, "bob")
    assert who(client) == "bob"


# ---- members of single projects who are removed


@pytest.fixture
def grouped(provider: Provider, acme: Organization, bob: Person) -> IdentityProvider:
    """Return a provider that gives the group "users" the role member. Its bob is limited to his project."""
    row = offer(acme, provider, "acme.example", groups_claim="groups", group_roles={"users": "member"})
    User.objects.filter(pk=bob.user.pk).update(email="bob@Acme.example", last_login=timezone.now())
    EmailAddress.objects.create(user=bob.user, email="bob@acme.example", verified=True)
    memberships.change_place(Member.objects.get(user=bob.user), Role.VIEWER, [bob.project])
    provider.knows("19", email="bob@acme.example", groups=["users"])
    return row


def place_of(person: Person) -> tuple[bool, list[str]] | None:
    """Return whether the membership is limited, and to which projects; None if there is none."""
    member = Member.objects.filter(user=person.user).first()
    return (member.is_limited, [row.name for row in member.projects.all()]) if member else None


@pytest.mark.parametrize("way", ["console", "admin", "API"])
def test_a_removed_limited_member_does_not_come_back_with_everything(
    provider: Provider, grouped: IdentityProvider, alice: Person, bob: Person, way: str
) -> None:
    client, member = client_of(alice.user), Member.objects.get(user=bob.user)
    come(provider, grouped, "19")
    # The second removal is as harmless as the first one.
    for _ in range(2):
        if way == "API":
            answer = alice.manage_as("owner").send("DELETE", f"/v1/organization/users/{bob.user.pk}")
            assert answer.json()["deleted"] is False
        else:
            path = f"/console/{grouped.pk}/members/{member.pk}/remove"
            path = path if way == "console" else f"/admin/accounts/member/{member.pk}/delete/"
            shown = text(client.post(path, {"post": "yes"}, follow=True))
            assert "bob sees nothing of the organization now, and stays listed" in shown
            assert ("deleted successfully" in shown, "is no longer a member" in shown) == (False, False)
    assert place_of(bob) == (True, [])
    entry = AuditEntry.objects.filter(object_type="accounts.member", object_id=str(member.pk)).latest("id")
    assert "projects" in entry.changes
    visitor = come(provider, grouped, "19")[1]
    assert place_of(bob) == (True, [])
    assert visitor.get(f"/console/{grouped.pk}/start").status_code == 404
    # An owner gives the projects back, or removes the person after the limit is gone.
    memberships.change_place(Member.objects.get(user=bob.user), Role.VIEWER, None)
    assert memberships.remove(Member.objects.get(user=bob.user))
    assert place_of(bob) is None


@pytest.mark.parametrize(
    "changes", [{"groups_claim": "", "default_role": "viewer"}, {"groups_claim": "", "default_role": ""}]
)
def test_a_limited_member_is_kept_if_the_provider_lets_new_people_in(
    grouped: IdentityProvider, bob: Person, changes: dict[str, str]
) -> None:
    IdentityProvider.objects.update(**changes)
    is_removed = memberships.remove(Member.objects.get(user=bob.user))
    assert is_removed is (not changes["default_role"])


def test_people_of_other_domains_are_removed(grouped: IdentityProvider, bob: Person, charlie: Person) -> None:
    EmailDomain.objects.create(
        organization=charlie.project.organization, domain="globex.example", approved_at=timezone.now()
    )
    EmailDomain.objects.create(organization=grouped.organization, domain="new.example")
    for address in ("bob@globex.example", "bob@new.example", ""):
        User.objects.filter(pk=bob.user.pk).update(email=address)
        assert not memberships.may_come_back(Member.objects.select_related("user").get(user=bob.user))
    assert memberships.remove(Member.objects.get(user=bob.user))


def test_a_withdrawn_limited_invitation_says_what_the_provider_still_does(
    grouped: IdentityProvider, alice: Person, bob: Person
) -> None:
    User.objects.filter(pk=bob.user.pk).update(last_login=None, password="!")
    member = Member.objects.get(user=bob.user)
    shown = client_of(alice.user).post(f"/console/{grouped.pk}/members/{member.pk}/remove", follow=True)
    assert "The identity provider may still let them in, with all projects." in text(shown)
    assert place_of(bob) is None
