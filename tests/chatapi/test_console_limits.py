"""Budgets and rate limits in the console: what each role sees, sets, changes and removes."""

import asyncio
from copy import copy
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.db.models.signals import pre_save
from django.test import Client
from pytest_django import Settings

from accounts import keys
from accounts.audit.models import AuditEntry
from accounts.limits import NOTHING_USED
from accounts.models import EndUser, Organization, Project, RateLimit, Role
from accounts.rate_limits import RateLimits
from accounts.sign_in.models import EmailDomain
from chatapi.redis_client import connect
from tests import cast
from tests.admin_pages import client_of, text
from tests.cast import Person, run
from tests.chatapi.console_pages import as_role, url
from tests.chatapi.worker.processes import Valkey
from usage.insights.budget_limit_list import limits_page
from usage.models import Budget, BudgetLimit, Period, Scope, SpendAlert
from usage.models.budget_keys import LimitKey
from usage.notifications.spend_alerts import MAX_ALERTS
from usage.pricing import from_usd

pytestmark = pytest.mark.usefixtures("small")


def limit(scope: Scope, scope_id: int, period: str = "month", usd: str = "50") -> BudgetLimit:
    return BudgetLimit.objects.create(
        scope=scope, scope_id=scope_id, period=period, limit_nanodollars=from_usd(usd)
    )


# ---- budgets


def test_a_project_gets_fifty_dollars_a_month(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    shown = client.get(url(alice, "budgets")).content.decode()
    assert f'budgets/new?project={alice.project.pk}"' in shown
    form = client.get(url(alice, f"budgets/new?project={alice.project.pk}")).context["form"]
    assert form.fields["period"].choices[0][0] == "month"  # the first is preselected
    sent = {"project": alice.project.pk, "period": "month", "limit_nanodollars": "50"}
    assert client.post(url(alice, "budgets/new"), sent).status_code == 302
    row = BudgetLimit.objects.get()
    assert (row.scope, row.scope_id, row.limit_nanodollars) == ("project", alice.project.pk, from_usd("50"))
    entry = AuditEntry.objects.get(object_type="usage.budgetlimit")
    assert (entry.action, entry.actor_id) == ("created", alice.user.pk)
    again = text(client.post(url(alice, "budgets/new"), sent), 400)
    assert "There is a limit for this period already" in again
    assert "Enter at least one of the two amounts." in text(
        client.post(url(alice, "budgets/new"), sent | {"period": "day", "limit_nanodollars": ""}),
        400,
    )


def test_a_budget_shows_what_is_spent_beside_its_limit_and_when_it_resets(alice: Person) -> None:
    row, request = limit(Scope.PROJECT, alice.project.pk), run(alice)
    spent = Budget.rows(LimitKey(Scope.PROJECT, alice.project.pk, "month")).get()
    shown = text(client_of(alice.user).get(url(alice, "budgets")))
    first = spent.period_start
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    assert f"each month {following:%Y-%m-%d} 00:00" in shown
    assert "$50.00" in shown
    page = client_of(alice.user).get(url(alice, f"budgets/{row.pk}"))
    (by_key, keys), (by_model, models) = page.context["tables"]
    assert (by_key, by_model) == ("key", "model")
    assert [each.totals.amount_nanodollars for each in keys] == [request.amount_nanodollars]
    assert [each.label for each in models] == ["small"]
    assert "alice" in text(page)


def test_a_spend_alert_is_added_and_removed(alice: Person) -> None:
    client, project = as_role(alice, Role.ADMIN), alice.project
    User.objects.filter(pk=alice.user.pk).update(email="alice@example.com", last_login=datetime.now(UTC))
    page = url(alice, f"budgets/alerts/new?project={project.pk}")
    assert "alice@example.com" in text(client.get(page))
    sent = {"project": project.pk, "threshold": "75", "recipients": [alice.user.pk]}
    mistakes: list[dict[str, Any]] = [
        {"threshold": "0"}, {"threshold": ""}, {"recipients": []}, {"recipients": [999]},
    ]  # fmt: skip
    for wrong in mistakes:
        assert client.post(page, sent | wrong).status_code == 400, wrong
    assert client.post(page, sent).status_code == 302
    row = SpendAlert.objects.get()
    assert (row.project, row.threshold_nanodollars, row.recipients) == (
        project,
        from_usd("75"),
        [alice.user.pk],
    )
    assert "default $75.00 alice@example.com Remove" in text(client.get(url(alice, "budgets")))
    assert "Remove" not in text(as_role(alice, Role.VIEWER).get(url(alice, "budgets")))
    assert as_role(alice, Role.ADMIN).post(url(alice, f"budgets/alerts/{row.pk}/remove")).status_code == 302
    entries = AuditEntry.objects.filter(object_type="usage.spendalert").order_by("pk")
    assert [entry.action for entry in entries] == ["created", "deleted"]
    SpendAlert.objects.bulk_create(
        SpendAlert(organization=project.organization, threshold_nanodollars=1, recipients=[])
        for _ in range(MAX_ALERTS)
    )
    assert "There are 20 spend alerts already." in text(client.post(page, sent), 400)


@pytest.mark.parametrize(
    ("sends_email", "intro"), [(True, "these members get a mail"), (False, "This service sends no mail")]
)
def test_a_spend_alert_without_anybody_to_mail_says_so(
    alice: Person, settings: Settings, sends_email: bool, intro: str
) -> None:
    settings.SENDS_EMAIL = sends_email
    client, page = as_role(alice, Role.ADMIN), url(alice, "budgets/alerts/new")
    shown = text(client.get(page))
    assert intro in shown
    assert "No member has signed in and has an address yet: nobody gets a mail." in shown
    assert client.post(page, {"threshold": "75"}).status_code == 302
    assert SpendAlert.objects.get().recipients == []


@pytest.mark.parametrize("period", Period)
@pytest.mark.parametrize("scope", [Scope.ORGANIZATION, Scope.PROJECT, Scope.API_KEY])
def test_every_kind_of_budget_has_a_page(alice: Person, scope: Scope, period: str) -> None:
    ids = {
        Scope.ORGANIZATION: alice.project.organization_id,
        Scope.PROJECT: alice.project.pk,
        Scope.API_KEY: alice.api_key.pk,
    }
    row, request = limit(scope, ids[scope], period, "0.001"), run(alice)
    page = client_of(alice.user).get(url(alice, f"budgets/{row.pk}"))
    assert page.status_code == 200
    for group, rows in page.context["tables"]:
        assert [each.totals.amount_nanodollars for each in rows] == [request.amount_nanodollars], group
        assert client_of(alice.user).get(rows[0].url).context["page"].rows, rows[0].url


def test_pages_of_the_list_have_each_limit_once(alice: Person) -> None:
    organization = alice.project.organization
    for period in ("ever", "day", "month", "week"):
        limit(Scope.API_KEY, alice.api_key.pk, period, "1")
        limit(Scope.PROJECT, alice.project.pk, period, "1")
        limit(Scope.PROJECT_END_USERS, alice.project.pk, period, "1")
    whole = [each.limit.pk for each in limits_page(organization, None, None, 50) or ()]
    found: list[int] = []
    for _ in range(7):
        page = limits_page(organization, None, found[-1] if found else None, 2)
        found += [each.limit.pk for each in page or ()]
    assert len(whole) == 12
    assert found == whole


def test_budgets_that_are_nearly_reached_come_first_the_fullest_at_the_top(alice: Person) -> None:
    spent, organization = run(alice).amount_nanodollars, alice.project.organization
    key, project = {"scope": Scope.API_KEY, "scope_id": alice.api_key.pk}, alice.project.pk
    far = [limit(Scope.ORGANIZATION, organization.pk), limit(Scope.PROJECT, project)]
    near = [
        limit(Scope.PROJECT, project, "day", "0"),
        BudgetLimit.objects.create(**key, period="ever", limit_nanodollars=spent * 10 // 9),
        BudgetLimit.objects.create(
            scope=Scope.PROJECT, scope_id=project, period="ever", limit_nanodollars=spent * 8 // 7
        ),
        BudgetLimit.objects.create(
            scope=Scope.PROJECT, scope_id=project, period="week", limit_nanodollars=spent * 6 // 5
        ),
        BudgetLimit.objects.create(**key, period="day", limit_nanodollars=spent * 5 // 4),
        BudgetLimit.objects.create(
            **key, period="month", limit_nanodollars=10**15, soft_limit_nanodollars=spent
        ),
    ]
    wanted = [row.pk for row in (*near, *far)]
    response = client_of(alice.user).get(url(alice, "budgets"))
    assert [line.use.limit.pk for line in response.context["lines"]] == wanted
    assert "Budgets at 80 % of their limit, or at their warning, come first." in text(response)
    found: list[int] = []
    for _ in wanted:
        page = limits_page(organization, None, found[-1] if found else None, 1)
        assert page
        found.append(page[0].limit.pk)
    assert found == wanted


def test_many_projects_without_a_limit_are_behind_a_click(alice: Person) -> None:
    client, acme = client_of(alice.user), alice.project.organization
    page = url(alice, "budgets")
    assert "<details open><summary><h2" in client.get(page).content.decode()
    Project.objects.bulk_create(Project(organization=acme, name=f"more {number}") for number in range(4))
    response = client.get(page)
    assert "<details><summary><h2" in response.content.decode()
    assert "Without a limit 6 Organization or project" in text(response)


@pytest.mark.parametrize("after", ["0", "x", "{removed}", "{strangers}"])
def test_there_is_no_page_of_the_list_behind_a_limit_that_is_not_in_it(
    alice: Person, charlie: Person, after: str
) -> None:
    removed, strangers = limit(Scope.API_KEY, alice.api_key.pk), limit(Scope.API_KEY, charlie.api_key.pk)
    after = after.format(removed=removed.pk, strangers=strangers.pk)
    removed.delete()
    assert as_role(alice, Role.VIEWER).get(url(alice, f"budgets?after={after}")).status_code == 404


def test_limits_of_end_users_are_in_the_list(alice: Person) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    person = EndUser.objects.create(project=alice.project, name="customer-1")
    limit(Scope.PROJECT_END_USERS, alice.project.pk)
    row = limit(Scope.END_USER, person.pk)
    client = as_role(alice, Role.ADMIN)
    shown = text(client.get(url(alice, "budgets")))
    assert "each end user of the project" in shown
    assert "customer-1" in shown
    run(alice, end_user="customer-1")
    assert "small" in text(client.get(url(alice, f"budgets/{row.pk}")))
    sent = {"project": alice.project.pk, "each_end_user": "on", "period": "day", "limit_nanodollars": "1"}
    assert client.post(url(alice, "budgets/new"), sent).status_code == 302
    Project.objects.create(organization=alice.project.organization, name="other")
    other = {**sent, "project": Project.objects.get(name="other").pk}
    assert "does not count its end users" in text(client.post(url(alice, "budgets/new"), other), 400)


def test_a_budget_of_an_end_user_leads_to_their_requests(alice: Person) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    request = run(alice, end_user="customer-1")
    run(alice, end_user="customer-2")
    row = limit(Scope.END_USER, EndUser.objects.get(name="customer-1").pk)
    client = client_of(alice.user)
    context = client.get(url(alice, f"budgets/{row.pk}")).context
    ((_, (model,)),) = context["tables"]
    for link in (context["requests_url"], model.url):
        assert [each.pk for each in client.get(link).context["page"].rows] == [request.pk]


def test_a_budget_of_an_end_user_is_not_of_the_day_before(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    Organization.objects.filter(pk=alice.project.organization_id).update(time_zone="Etc/GMT-5")
    midnight = datetime.now(timezone(timedelta(hours=5))).replace(hour=0, minute=0, second=0, microsecond=0)
    with monkeypatch.context() as patched:
        patched.setattr(cast, "database_now", lambda: midnight - timedelta(minutes=1))
        run(alice, end_user="customer-1")
    run(alice, end_user="customer-1")
    row = limit(Scope.END_USER, EndUser.objects.get(name="customer-1").pk, Period.DAY)
    context = client_of(alice.user).get(url(alice, f"budgets/{row.pk}")).context
    ((_, (model,)),) = context["tables"]
    assert model.totals.amount_nanodollars == context["line"].use.posted_nanodollars


def test_the_requests_of_a_budget_began_in_its_period(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums below count requests when they finish, and their lists do, too."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    with monkeypatch.context() as patched:
        times = iter([midnight - timedelta(seconds=1)])
        patched.setattr(cast, "database_now", lambda: next(times, midnight))
        before = run(alice)
    request, row = run(alice), limit(Scope.API_KEY, alice.api_key.pk, Period.DAY)
    client = client_of(alice.user)
    context = client.get(url(alice, f"budgets/{row.pk}")).context
    ((_, (model,)),) = context["tables"]
    for link, listed in ((context["requests_url"], {request.pk}), (model.url, {before.pk, request.pk})):
        assert {each.pk for each in client.get(link).context["page"].rows} == listed


def test_a_limit_is_changed_and_removed(alice: Person) -> None:
    row, client = limit(Scope.API_KEY, alice.api_key.pk), as_role(alice, Role.ADMIN)
    page = url(alice, f"budgets/{row.pk}")
    client.post(page, {"limit_nanodollars": "2", "soft_limit_nanodollars": "1"})
    row.refresh_from_db()
    assert (row.limit_nanodollars, row.soft_limit_nanodollars) == (from_usd("2"), from_usd("1"))
    wrong = client.post(page, {"limit_nanodollars": "1e99", "soft_limit_nanodollars": "7"})
    assert 'class="error"' in wrong.content.decode()
    assert "Warning at $1.00" in text(wrong, 400), "the panel has what is saved"
    row.refresh_from_db()
    assert row.limit_nanodollars == from_usd("2")
    client.post(f"{page}/remove")
    assert not BudgetLimit.objects.exists()
    actions = AuditEntry.objects.filter(object_type="usage.budgetlimit").values_list("action", flat=True)
    assert sorted(actions) == ["changed", "deleted"]


def test_limits_of_the_organization_are_the_operators(alice: Person, root: Client) -> None:
    row = limit(Scope.ORGANIZATION, alice.project.organization_id)
    rate = RateLimit.objects.create(organization=alice.project.organization, requests_per_minute=5)
    client = as_role(alice, Role.OWNER)
    assert "Remove the limit" not in text(client.get(url(alice, f"budgets/{row.pk}")))
    sent = {"limit_nanodollars": "1000"}
    assert client.post(url(alice, f"budgets/{row.pk}"), sent).status_code == 403
    assert client.post(url(alice, f"budgets/{row.pk}/remove")).status_code == 403
    for page in (f"budgets/rate-limits/{rate.pk}", f"budgets/rate-limits/{rate.pk}/remove"):
        assert client.post(url(alice, page), {"requests_per_minute": "9"}).status_code == 403
    assert root.post(url(alice, f"budgets/{row.pk}"), sent).status_code == 302
    row.refresh_from_db()
    assert row.limit_nanodollars == from_usd("1000")


def test_a_key_of_another_organization_gets_no_limit(alice: Person, charlie: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    for page in ("budgets/new", "budgets/rate-limits/new"):
        assert client.get(url(alice, f"{page}?key={charlie.api_key.pk}")).status_code == 404
    sent = {"project": charlie.project.pk, "period": "month", "limit_nanodollars": "1"}
    client.post(url(alice, "budgets/new"), sent)
    client.post(url(alice, "budgets/rate-limits/new"), sent | {"requests_per_minute": "1"})
    assert not BudgetLimit.objects.exists()
    assert not RateLimit.objects.exists()


def test_long_lists_of_limits_have_pages(alice: Person, charlie: Person) -> None:
    limit(Scope.PROJECT, charlie.project.pk)
    wanted = {limit(Scope.PROJECT, alice.project.pk, period).pk for period in ("day", "month")}
    for number in range(55):
        key, _ = keys.create_key(alice.project, name=f"k{number}")
        wanted.add(limit(Scope.API_KEY, key.pk).pk)
    client, seen, page = client_of(alice.user), [], url(alice, "budgets")
    while page:
        context = client.get(page).context
        seen += [line.use.limit.pk for line in context["lines"]]
        page = context["older_url"]
    assert (len(seen), set(seen)) == (57, wanted)


def test_a_project_without_limits_has_those_of_the_organization(alice: Person) -> None:
    organization, client = alice.project.organization, client_of(alice.user)
    limit(Scope.ORGANIZATION, organization.pk)
    RateLimit.objects.create(organization=organization, requests_per_minute=5)
    for page, words in {
        "budgets": "No budgets of the project default yet. Those of the organization apply.",
        "budgets/rate-limits": "No rate limits of the project default yet. Those of the organization apply.",
    }.items():
        assert words in text(client.get(url(alice, f"{page}?project={alice.project.pk}")))


def test_a_long_list_of_projects_says_where_the_others_are(alice: Person) -> None:
    client, acme = client_of(alice.user), alice.project.organization
    assert "first 50" not in text(client.get(url(alice, "budgets")))
    Project.objects.bulk_create(Project(organization=acme, name=f"more {number:02}") for number in range(50))
    budgets = client.get(url(alice, "budgets"))
    assert "more 48" in text(budgets)
    assert "more 49" not in text(budgets)
    assert "Only the first 50 projects are searched for those without a limit" in text(budgets)
    assert "All projects are in Settings" in text(budgets)


# ---- rate limits


def test_a_rate_limit_is_set_changed_and_removed(alice: Person) -> None:
    client, new = as_role(alice, Role.ADMIN), url(alice, "budgets/rate-limits/new")
    assert "Set a rate limit" in text(client.get(url(alice, "budgets/rate-limits")))
    empty = {"project": alice.project.pk, "model": "small"}
    assert "Enter at least one number." in text(client.post(new, empty), 400)
    client.post(new, empty | {"requests_per_minute": "60", "concurrent_requests": "3"})
    row = RateLimit.objects.get()
    assert (row.project, row.model, row.requests_per_minute, row.concurrent_requests) == (
        alice.project, "small", 60, 3,
    )  # fmt: skip
    assert "already exists" in text(client.post(new, empty | {"requests_per_minute": "1"}), 400)
    shown = text(client.get(url(alice, "budgets/rate-limits")))
    assert "Requests per minute" in shown
    assert "60" in shown
    client.post(url(alice, f"budgets/rate-limits/{row.pk}"), {"tokens_per_day": "1000"})
    row.refresh_from_db()
    assert (row.model, row.requests_per_minute, row.tokens_per_day) == ("small", None, 1_000)
    client.post(url(alice, f"budgets/rate-limits/{row.pk}/remove"))
    assert not RateLimit.objects.exists()
    actions = AuditEntry.objects.filter(object_type="accounts.ratelimit").values_list("action", flat=True)
    assert sorted(actions) == ["changed", "created", "deleted"]


def test_a_project_narrows_the_list_of_rate_limits(alice: Person) -> None:
    other = Project.objects.create(organization=alice.project.organization, name="other")
    RateLimit.objects.create(project=other, requests_per_minute=4321)
    RateLimit.objects.create(api_key=alice.api_key, requests_per_minute=1234)
    path, client = url(alice, "budgets/rate-limits"), as_role(alice, Role.VIEWER)
    assert "1,234" in (whole := text(client.get(path)))
    assert "4,321" in whole
    narrowed = client.get(f"{path}?project={alice.project.pk}")
    assert "1,234" in text(narrowed)
    assert "4,321" not in text(narrowed)
    assert f"/budgets?project={alice.project.pk}" in narrowed.content.decode(), "the other tab keeps it"


def test_a_key_gets_a_rate_limit_from_its_page(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    path = url(alice, f"budgets/rate-limits/new?key={alice.api_key.pk}")
    assert path in client.get(url(alice, f"keys/{alice.api_key.pk}")).content.decode()
    client.post(path, {"requests_per_day": "7"})
    assert RateLimit.objects.get().api_key == alice.api_key


@pytest.mark.django_db(transaction=True)  # so that a refused row ends only its own transaction
@pytest.mark.parametrize(
    ("model", "page", "route"),
    [
        (RateLimit, "budgets/rate-limits/new", "budgets/rate-limits/new"),
        (EmailDomain, "settings/sign-in", "settings/sign-in/domains"),
        (EmailDomain, "settings/sign-in/domains", "settings/sign-in/domains"),
    ],
)
def test_a_second_press_shows_the_form_again(alice: Person, model: Any, page: str, route: str) -> None:
    def be_faster(instance: Model, **kwargs: object) -> None:
        model.objects.bulk_create([copy(instance)])

    client, headers = as_role(alice, Role.OWNER), {"referer": f"http://testserver{url(alice, page)}"}
    sent = {"project": alice.project.pk, "requests_per_minute": "60", "domain": "acme.example"}
    pre_save.connect(be_faster, sender=model)
    try:
        shown = client.post(url(alice, route), sent, headers=headers, follow=True)
    finally:
        pre_save.disconnect(be_faster, sender=model)
    # The page of a refused form is at the route of the form, and leads on.
    assert (shown.status_code, shown.redirect_chain[0]) == (200, (url(alice, page), 302))
    assert "This conflicts with a change that was saved just now" in text(shown)
    assert model.objects.count() == 1


@pytest.mark.parametrize("are_several", [False, True])
def test_the_use_of_a_rate_limit_is_shown(
    alice: Person, settings: Settings, valkey: Valkey, are_several: bool
) -> None:
    settings.BROKER_URL = settings.STREAMS_URL = f"unix://{valkey.socket}"
    if are_several:
        settings.STREAMS_URL = "redis://nobody-0.invalid:6379,redis://nobody-1.invalid:6379"
    numbers = {"requests_per_day": 10, "concurrent_requests": 4}
    row = RateLimit.objects.create(project=alice.project, **numbers)
    RateLimit.objects.create(project=alice.project, each_end_user=True, **numbers)

    async def take() -> None:
        async with connect(settings.BROKER_URL) as redis:
            shared = RateLimits(redis, settings.REDIS_KEY_PREFIX, lease_ms=60_000)
            for _ in range(3):
                await shared.take(row.limits, uuid4(), model="small", amounts=NOTHING_USED)

    asyncio.run(take())
    each, whole = client_of(alice.user).get(url(alice, "budgets/rate-limits")).context["lines"]
    assert [(number.used, number.most) for number in whole.numbers] == [(3, 10), (3, 4)]
    assert [(number.used, number.most) for number in each.numbers] == [(None, 10), (None, 4)]


def test_without_redis_the_limits_are_shown_all_the_same(alice: Person, settings: Settings) -> None:
    settings.STREAMS_URL = "unix:///nowhere"
    RateLimit.objects.create(project=alice.project, requests_per_day=10)
    shown = text(client_of(alice.user).get(url(alice, "budgets/rate-limits")))
    assert "can't be read right now" in shown
    assert "Requests per day" in shown
