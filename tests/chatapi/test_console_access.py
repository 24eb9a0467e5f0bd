"""Who gets what on every page of the console: a page that this file does not know fails it.

Each page of Acme's has the least role that may read it, and the least that may send its form. They are asked
for by Acme's own people by role, also by those who see a single project, operators, Umbrella's owner, a
person without organization, a visitor and an API key. Pages of one row are asked for with Umbrella's rows,
too.
"""

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import certificates, groups, own_roles
from accounts.models import Member, Organization, RateLimit, Role
from accounts.sign_in.models import EmailDomain, IdentityProvider
from chatapi.console.urls import _of_organization
from chatapi.models import ServedModel
from chatapi.notifications import webhooks
from chatapi.notifications.models import Delivery, WebhookEndpoint
from tests.admin_pages import body, client_of
from tests.cast import Person, join, run
from tests.client_certificates import make
from tests.fake_stripe import Stripe
from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.models import BudgetLimit, Event, EventKind, SpendAlert

LEAST_FIRST = ["viewer", "member", "admin", "owner"]
ANYONE, NOBODY = "viewer", None
# The least role that may read, and the least that may send.
TABLE: dict[str, tuple[str | None, str | None]] = {
    "home_of": ("viewer", NOBODY),
    "search": ("viewer", NOBODY),
    "start": ("viewer", NOBODY),
    "overview": ("viewer", NOBODY),
    "usage": ("viewer", NOBODY),
    "usage_file": ("viewer", NOBODY),
    "requests": ("viewer", NOBODY),
    "requests_file": ("viewer", NOBODY),
    "request": ("viewer", NOBODY),
    "live": ("viewer", NOBODY),
    "live_stop": (NOBODY, "admin"),
    "live_stop_key": (NOBODY, "admin"),
    "live_stop_end_user": (NOBODY, "admin"),
    "keys": ("viewer", NOBODY),
    "key": ("viewer", NOBODY),
    "new_key": ("member", "member"),
    "change_key": ("member", "member"),
    "rotate_key": ("member", "member"),
    "end_previous_key": (NOBODY, "member"),
    "switch_key": (NOBODY, "member"),
    "revoke_key": (NOBODY, "member"),
    "new_project": ("admin", "admin"),
    "budgets": ("viewer", NOBODY),
    "new_budget": ("admin", "admin"),
    "budget": ("viewer", "admin"),
    "remove_budget": (NOBODY, "admin"),
    "new_alert": ("admin", "admin"),
    "remove_alert": (NOBODY, "admin"),
    "rate_limits": ("viewer", NOBODY),
    "new_rate_limit": ("admin", "admin"),
    "rate_limit": ("admin", "admin"),
    "remove_rate_limit": (NOBODY, "admin"),
    "models": ("viewer", NOBODY),
    "model": ("viewer", NOBODY),
    "playground": ("member", NOBODY),
    "playground_key": (NOBODY, "member"),
    "playground_code": (NOBODY, "member"),
    "credit": ("admin", "admin"),
    "statements": ("viewer", NOBODY),
    "statement": ("viewer", NOBODY),
    "statement_file": ("viewer", NOBODY),
    "members": ("viewer", NOBODY),
    "invite": ("admin", "admin"),
    "invitation": ("admin", NOBODY),
    "member_password": (NOBODY, "owner"),
    "member_place": ("admin", "admin"),
    "change_role": (NOBODY, "admin"),
    "remove_member": (NOBODY, "admin"),
    "own_roles": ("viewer", NOBODY),
    "new_role": ("admin", "admin"),
    "own_role": ("admin", "admin"),
    "remove_role": (NOBODY, "admin"),
    "groups": ("viewer", NOBODY),
    "new_group": ("admin", "admin"),
    "group": ("admin", "admin"),
    "remove_group": (NOBODY, "admin"),
    "notifications": ("viewer", "viewer"),
    "low_credit": ("admin", "admin"),
    "webhooks": ("admin", NOBODY),
    "new_webhook": ("admin", "admin"),
    "webhook": ("admin", "admin"),
    "rotate_webhook": (NOBODY, "admin"),
    "switch_webhook": (NOBODY, "admin"),
    "test_webhook": (NOBODY, "admin"),
    "remove_webhook": (NOBODY, "admin"),
    "replay_webhook": (NOBODY, "admin"),
    "audit": ("owner", NOBODY),
    "settings": ("viewer", "owner"),
    "project_settings": ("admin", "admin"),
    "certificates": ("admin", NOBODY),
    "new_certificate": ("admin", "admin"),
    "certificate": ("admin", "admin"),
    "remove_certificate": (NOBODY, "admin"),
    "sign_in_settings": ("owner", "owner"),
    "remove_provider": (NOBODY, "owner"),
    "add_domain": ("owner", "owner"),
    "change_domain": (NOBODY, "owner"),
    "remove_domain": (NOBODY, "owner"),
}
# The pages that people who see single projects may open, as far as their role allows it.
OF_PROJECTS = {
    "home_of", "search", "start", "overview", "usage", "usage_file", "requests", "requests_file", "request",
    "live", "keys", "key", "new_key", "change_key", "rotate_key", "end_previous_key", "switch_key",
    "revoke_key", "budgets", "budget", "rate_limits", "models", "model", "playground", "playground_key",
    "playground_code",
}  # fmt: skip
OF_A_ROW = (
    "request", "live_stop", "key", "change_key", "rotate_key", "end_previous_key", "switch_key", "revoke_key",
    "invitation", "member_place", "change_role", "remove_member", "statement", "budget",
    "remove_budget", "remove_alert", "rate_limit", "remove_rate_limit", "project_settings", "webhook",
    "rotate_webhook", "switch_webhook", "test_webhook", "remove_webhook", "replay_webhook",
    "member_password", "change_domain", "remove_domain", "group", "remove_group", "own_role",
    "remove_role", "certificate", "remove_certificate",
)  # fmt: skip


def delivery_of(person: Person) -> Delivery:
    """Return a delivery to a new endpoint of the person's organization, which has an event, too."""
    now, pk = timezone.now(), person.project.organization_id
    endpoint = WebhookEndpoint(
        organization=person.project.organization, url=f"https://{person.user.username}.example.com"
    )
    webhooks.add(endpoint)
    data = {"spent_usd": "8.1", "usual_usd": "4"}
    outbox.write(now, [NewEvent(EventKind.SPEND, pk, f"organization/{pk}", "2026-11-26", "", data)])
    event = Event.objects.get(organization=pk)
    return Delivery.objects.create(event=event, endpoint=endpoint, begun_at=now, due_at=now)


class House:
    """Acme's rows, and Umbrella's."""

    def __init__(self, acme: Organization, alice: Person, charlie: Person) -> None:
        self.acme, self.alice, self.charlie = acme, alice, charlie
        dora = User.objects.create(username="dora", password="!")
        self.invited = Member.objects.create(organization=acme, user=dora, role=Role.VIEWER)
        self.active = join("frank", Role.VIEWER, acme, "default")
        self.active.user.set_password("correct horse battery")
        self.active.user.save()
        IdentityProvider.objects.create(organization=acme)
        self.domain, self.their_domain = (
            EmailDomain.objects.create(organization=person.project.organization, domain=domain)
            for person, domain in ((alice, "acme.example"), (charlie, "umbrella.example"))
        )
        self.request, self.theirs = run(alice), run(charlie)
        self.budget, self.their_budget = (
            BudgetLimit.objects.create(
                scope="project", scope_id=person.project.pk, period="day", limit_nanodollars=10**12
            )
            for person in (alice, charlie)
        )
        self.alert, self.their_alert = (
            SpendAlert.objects.create(
                organization_id=person.project.organization_id, threshold_nanodollars=1, recipients=[]
            )
            for person in (alice, charlie)
        )
        self.rate, self.their_rate = (
            RateLimit.objects.create(project=person.project, requests_per_minute=1_000)
            for person in (alice, charlie)
        )

        self.group, self.their_group = (
            groups.create(
                person.project.organization_id,
                f"{person.user.username}-group",
                [Member.objects.get(user=person.user)],
                [person.project],
            )
            for person in (alice, charlie)
        )
        self.role, self.their_role = (
            own_roles.create(person.project.organization_id, "Finance", "", own_roles.with_choices(["usage"]))
            for person in (alice, charlie)
        )
        self.certificate, self.their_certificate = (
            certificates.create(person.project.organization_id, make(person.user.username).pem).pk
            for person in (alice, charlie)
        )
        self.delivery, self.their_delivery = (delivery_of(person) for person in (alice, charlie))

    def path(self, name: str, *, of: str = "acme") -> str:
        """Return the path below Acme of its own row, of Umbrella's ("others") or of one that never was."""
        others = Member.objects.get(user=self.charlie.user)
        request, key, member, budget, rate, project, domain, alert, group, role = {
            "acme": (
                self.request, self.alice.api_key.pk, self.invited.pk, self.budget.pk, self.rate.pk,
                self.alice.project.pk, self.domain.pk, self.alert.pk, self.group.pk, self.role.pk,
            ),
            "others": (
                self.theirs, self.charlie.api_key.pk, others.pk, self.their_budget.pk, self.their_rate.pk,
                self.charlie.project.pk, self.their_domain.pk, self.their_alert.pk, self.their_group.pk,
                self.their_role.pk,
            ),
            "unknown": ("gen_" + "0" * 32, *[999_999_999] * 9),
        }[of]  # fmt: skip
        certificate = {"acme": self.certificate, "others": self.their_certificate}.get(of, 999_999_999)
        delivery = {"acme": self.delivery, "others": self.their_delivery}.get(of)
        webhook = (delivery.endpoint_id, delivery.pk) if delivery else (999_999_999, 999_999_999)
        if name == "replay_webhook":
            return reverse(f"console:{name}", args=[self.acme.pk, *webhook])
        of_member = dict.fromkeys(("invitation", "member_place", "change_role", "remove_member"), member)
        month = f"{timezone.now():%Y-%m}" if of == "acme" else "2000-01"
        months = {"statement": (month,), "statement_file": (month, "csv")}
        months |= dict.fromkeys(("usage_file", "requests_file"), ("csv",))
        rows = {
            "request": str(request),
            "live_stop": str(request),
            "model": "small",
            **dict.fromkeys(
                ("key", "change_key", "rotate_key", "end_previous_key", "switch_key", "revoke_key"), key
            ),
            **of_member,
        }
        rows |= {"budget": budget, "remove_budget": budget, "rate_limit": rate, "remove_rate_limit": rate}
        rows |= {each: webhook[0] for each in TABLE if each.endswith("webhook") and each != "new_webhook"}
        rows |= {"project_settings": project, "change_domain": domain, "remove_domain": domain}
        rows |= {"remove_alert": alert, "group": group, "remove_group": group}
        rows |= {"own_role": role, "remove_role": role}
        rows |= {"certificate": certificate, "remove_certificate": certificate}
        rows["member_password"] = Member.objects.get(user=self.active.user).pk if of == "acme" else member
        args = months.get(name) or ((rows[name],) if name in rows else ())
        return reverse(f"console:{name}", args=[self.acme.pk, *args])


@pytest.fixture
def house(stripe: Stripe, acme: Organization, alice: Person, charlie: Person, small: ServedModel) -> House:
    return House(acme, alice, charlie)


def client_as(house: House, who: str) -> Client:
    """Return a client of someone with this role, or of another kind of person."""
    if who == "visitor":
        return Client()
    if who == "API key":
        return Client(headers={"authorization": f"Bearer {house.alice.key}"})
    if who == "stranger":
        return client_of(house.charlie.user)
    user = User.objects.create_user(
        "eve", is_staff=who in ("clerk", "operator"), is_superuser=who == "operator"
    )
    role = who.removeprefix("limited ")
    if role in LEAST_FIRST:
        member = Member.objects.create(
            organization=house.acme, user=user, role=role, is_limited=who.startswith("limited ")
        )
        member.projects.set([house.alice.project] if member.is_limited else [])
    return client_of(user)


def outcome(response: Any) -> str:
    """Return whether the page was shown or the form accepted, or why not."""
    if response.status_code == 302 and response["location"].startswith("/console/sign-in"):
        return "signs in"
    return {404: "unknown", 403: "refused", 405: "no such method"}.get(response.status_code, "allowed")


def expected(who: str, least: str | None, name: str) -> str:
    if who in ("visitor", "API key", "nobody's member"):
        return "no such method" if least is None else "signs in"
    if least is None:
        return "no such method"
    if who == "stranger":
        return "unknown"
    if who == "operator":
        return "allowed"
    if who == "clerk" or (who.startswith("limited ") and name not in OF_PROJECTS):
        return "refused"
    who = who.removeprefix("limited ")
    return (
        "allowed"
        if least in LEAST_FIRST and LEAST_FIRST.index(who) >= LEAST_FIRST.index(least)
        else "refused"
    )


def test_every_page_is_known() -> None:
    assert {route.name for route in _of_organization} == TABLE.keys()


@pytest.mark.parametrize(
    "who",
    [
        "operator",
        "clerk",
        *LEAST_FIRST,
        "limited viewer",
        "limited member",
        "stranger",
        "nobody's member",
        "visitor",
        "API key",
    ],
)
def test_everyone_gets_exactly_what_they_may(house: House, who: str) -> None:
    client, wrong = client_as(house, who), []
    sent = {"role": "viewer", "project": house.alice.project.pk}
    for name, leasts in TABLE.items():
        for method, least in zip(("get", "post"), leasts, strict=True):
            with transaction.atomic():
                found = outcome(getattr(client, method)(house.path(name), sent if method == "post" else {}))
                transaction.set_rollback(True)
            if found != expected(who, least, name):
                wrong.append(f"{method} {name}: {found} instead of {expected(who, least, name)}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_form_sent_after_the_session_leads_to_a_page_that_there_is(house: House) -> None:
    sign_in = reverse("console:sign_in")
    assert Client().get(house.path("keys"))["location"] == f"{sign_in}?next={house.path('keys')}"
    pages = {
        "": "",
        f"http://testserver{house.path('live')}?project=1": f"{house.path('live')}%3Fproject%3D1",
        f"http://elsewhere{house.path('live')}": "",
        f"http://testserver//elsewhere{house.path('live')}": "",
        "http://[testserver": "",
    }
    for referer, wanted in pages.items():
        answer = Client().post(house.path("live_stop_key"), {"key": 1}, headers={"Referer": referer})
        assert answer["location"] == f"{sign_in}?next={wanted}"


def test_rows_of_others_look_like_rows_that_never_were(house: House) -> None:
    client = client_as(house, "owner")
    for name in OF_A_ROW:
        method = "get" if TABLE[name][0] else "post"
        bodies = []
        for of in ("others", "unknown"):
            response = getattr(client, method)(house.path(name, of=of), {"role": "viewer"})
            assert response.status_code == 404, name
            bodies.append(response.content)
        assert bodies[0] == bodies[1], name


def test_filters_by_others_rows_are_unknown_and_their_names_are_nowhere(house: House) -> None:
    client = client_as(house, "owner")
    for name in ("overview", "usage", "requests"):
        for filters in (
            f"project={house.charlie.project.pk}",
            f"key={house.charlie.api_key.pk}",
            "deployment=x",
        ):
            assert client.get(f"{house.path(name)}?{filters}").status_code == 404, filters
    secret = {"project": house.charlie.project.pk}
    assert client.post(house.path("playground_key"), secret).status_code == 404
    for name, (least, _) in TABLE.items():
        if least:
            shown = body(client.get(house.path(name), follow=True))
            assert not re.search(rf"Umbrella|charlie|{house.charlie.api_key.public[:4]}", shown), name


def test_someone_of_two_organizations_sees_one_at_a_time(house: House) -> None:
    client = client_as(house, "viewer")
    umbrella = house.charlie.project.organization
    Member.objects.create(organization=umbrella, user=User.objects.get(username="eve"), role=Role.VIEWER)
    shown = client.get(house.path("requests")).content.decode()
    assert house.request.id.hex[-8:] in shown
    assert house.theirs.id.hex[-8:] not in shown
    assert "Umbrella" in shown  # in the switcher
    assert client.get(f"{house.path('requests')}?key={house.charlie.api_key.pk}").status_code == 404
    assert client.get(house.path("request").replace(str(house.request), str(house.theirs))).status_code == 404


def test_the_policy_allows_only_our_own_files(house: House) -> None:
    client = client_as(house, "owner")
    paths = [
        house.path("overview"),
        "/console/sign-in",
        "/console/account",
        f"/console/{house.acme.pk}/no-such-page",
    ]
    for path in paths:
        policy = client.get(path)["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in f"{policy};"
        assert {"frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"} <= set(policy.split("; "))
        assert not re.search("unsafe|data:|http", policy), policy
