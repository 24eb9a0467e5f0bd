"""Content and forms of the console's pages; test_console_access.py has their permissions."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import Settings

from accounts.models import Member, Organization, Project, Role
from chatapi.console import member_pages
from chatapi.models import Deployment, ServedModel
from tests.admin_pages import client_of, text
from tests.cast import Person, run
from tests.chatapi.console_pages import as_role, url
from usage.models import Discount, HourlyUsage, Outcome, Price
from usage.pricing import from_usd


def test_the_menu_of_an_organization_without_projects_is_not_empty(alice: Person) -> None:
    Project.objects.update(is_active=False)
    html = as_role(alice, Role.VIEWER).get(url(alice, "keys")).content.decode()
    menu = html.partition('<div class="menu">')[2].partition("</div>")[0]
    assert "All projects" in menu


def test_a_page_below_a_list_leads_back_to_it_and_the_list_does_not(alice: Person) -> None:
    client, back = client_of(alice.user), "Back to"
    key = f"keys/{alice.api_key.pk}"
    pages = {key: "API keys", "budgets/rate-limits/new": "Rate limits", "projects/new": "Start"}
    for page, parent in pages.items():
        assert f"{back} {parent}" in text(client.get(url(alice, page)))
    for page in ("keys", "budgets", "budgets/rate-limits"):
        assert back not in text(client.get(url(alice, page))), page


@pytest.mark.parametrize("page", ["keys", "budgets/rate-limits", "models"])
def test_the_switcher_leads_to_the_first_page_of_a_projects_list(alice: Person, page: str) -> None:
    other = Project.objects.create(organization=alice.project.organization, name="other")
    path = url(alice, page)
    shown = client_of(alice.user).get(path, {"before": alice.api_key.pk}).content.decode()
    assert f'href="{path}?project={other.pk}"' in shown


def test_an_archived_project_narrows_a_page_and_is_named(alice: Person, bob: Person) -> None:
    Project.objects.filter(pk=bob.project.pk).update(is_active=False)
    client, query = client_of(alice.user), {"project": bob.project.pk}
    for page in ("overview", "usage", "keys", "budgets/rate-limits"):
        shown = client.get(url(alice, page), query)
        assert "research (archived)" in text(shown), page
        (chosen,) = [link for link in shown.context["projects"] if link.is_current]
        assert chosen.text == "research (archived)", page
    assert [row.name for row, *_ in client.get(url(alice, "keys"), query).context["keys"]] == ["bob"]
    offered = client.get(url(alice, "keys/new"), query).context["form"].fields["project"].queryset
    assert bob.project not in offered


def test_an_archived_project_narrows_no_models(alice: Person, bob: Person, small: ServedModel) -> None:
    Project.objects.filter(pk=bob.project.pk).update(is_active=False, models_mode="allow_list")
    client, query = client_of(alice.user), {"project": bob.project.pk}
    assert [each.id for each in client.get(url(alice, "playground"), query).context["models"]] == ["small"]
    assert "models of the project" not in text(client.get(url(alice, "models"), query))
    Project.objects.update(models_mode="allow_list")
    assert "No model is served to this organization" in text(client.get(url(alice, "models"), query))


def test_a_parameter_of_any_name_is_left_alone(alice: Person) -> None:
    query = {"name": "web", "self": "me", "project": "\0"}
    assert client_of(alice.user).get(url(alice, "keys"), query).status_code == 200


def test_every_page_names_the_time_zone_of_its_times(alice: Person) -> None:
    Organization.objects.update(time_zone="Asia/Tokyo")
    for page in ("notifications", "keys", f"keys/{alice.api_key.pk}"):
        assert "Times are in Asia/Tokyo" in text(client_of(alice.user).get(url(alice, page))), page


# ---- models and prices


def test_prices_are_the_organizations_now_and_as_announced(alice: Person, small: ServedModel) -> None:
    now, later = timezone.now(), timezone.now() + timedelta(days=9)
    price = Price.objects.filter(model="small").latest("effective_from")
    Price.objects.create(
        model="small",
        effective_from=later,
        **(price.value.columns() | {"output_per_mtok_nanodollars": from_usd("4")}),
    )
    Discount.objects.create(organization=alice.project.organization, effective_from=now, basis_points=5_000)
    shown = text(client_of(alice.user).get(url(alice, "models/small")))
    half = price.output_per_mtok_nanodollars // 2
    assert f"From {later:%Y-%m-%d}" in shown
    assert re.search(rf"Output \${half / 10**9:.2f}\d* \$2\.00", shown), shown
    # An announced price is the organization's at the discount of then.
    Discount.objects.create(organization=alice.project.organization, effective_from=later, basis_points=0)
    shown = text(client_of(alice.user).get(url(alice, "models/small")))
    assert re.search(rf"Output \${half / 10**9:.2f}\d* \$4\.00", shown), shown


def test_a_discount_that_changes_prices_later_is_announced(alice: Person, small: ServedModel) -> None:
    client, now, later = client_of(alice.user), timezone.now(), timezone.now() + timedelta(days=9)
    organization, output = alice.project.organization, Price.objects.get().output_per_mtok_nanodollars
    for start, basis_points, is_announced in ((now + timedelta(days=5), 0, False), (later, 5_000, True)):
        Discount.objects.create(organization=organization, effective_from=start, basis_points=basis_points)
        shown = text(client.get(url(alice, "models/small")))
        assert ("No other price is announced." in shown) is not is_announced
        assert (f"From {start:%Y-%m-%d}" in shown) is is_announced
    assert re.search(rf"Output \${output / 10**9:.2f}\d* \${output / 2 / 10**9:.2f}", shown), shown


def test_models_are_those_of_the_projects_lists(alice: Person, small: ServedModel) -> None:
    client = client_of(alice.user)
    narrow = Project.objects.create(
        organization=alice.project.organization,
        name="narrow",
        models_mode="deny_list",
        listed_models=["small"],
    )
    assert "small" in text(client.get(url(alice, "models")))
    assert "small" not in text(client.get(url(alice, f"models?project={narrow.pk}")))
    assert client.get(url(alice, f"models/small?project={narrow.pk}")).status_code == 404


@pytest.mark.parametrize(
    ("trusted", "origin"), [([], "http://testserver"), (["127.0.0.1"], "https://testserver")]
)
def test_code_has_the_readers_own_base_url(
    alice: Person, small: ServedModel, settings: Settings, trusted: list[str], origin: str
) -> None:
    settings.TRUSTED_PROXIES = trusted
    headers = {"host": "testserver", "x-forwarded-proto": "https"}
    shown = client_of(alice.user).get(url(alice, "models/small"), headers=headers)
    assert f"curl {origin}/v1/chat/completions" in shown.content.decode()


@pytest.mark.parametrize(
    ("engines", "is_taken"), [(["anthropic"], False), (["anthropic", "sandbox"], True), (["sandbox"], True)]
)
def test_a_model_accepts_what_one_of_its_upstreams_takes(
    alice: Person, small: ServedModel, engines: list[str], is_taken: bool
) -> None:
    small.deployments.all().delete()
    for engine in engines:
        Deployment.objects.create(model=small, name=engine, engine=engine)
    page = client_of(alice.user).get(url(alice, "models/small"))
    accepted = {tab.title: set(tab.parameters) for tab in page.context["tabs"]}
    for name in ("seed", "logit_bias", "presence_penalty", "n", "logprobs"):
        assert (name in accepted["Chat"]) is is_taken, name
    assert ("top_logprobs" in accepted["Responses"]) is is_taken
    assert ("Other parameters of Chat are left out or refused" in text(page)) is not is_taken
    # The service itself acts on these.
    assert accepted["Chat"] >= {"tools", "metadata", "prompt_cache_key", "service_tier"}
    assert accepted["Responses"] >= {"metadata", "store"}
    assert accepted["Messages"] >= {"metadata", "service_tier"}, "they are others than OpenAI's"


# ---- usage


def test_the_overview_adds_up_to_the_rollup_however_columns_are_merged(alice: Person) -> None:
    owner = {"organization": alice.project.organization, "project": alice.project, "api_key": alice.api_key}
    for days_ago in range(0, 80, 3):
        hour = (timezone.now() - timedelta(days=days_ago)).replace(minute=0, second=0, microsecond=0)
        sums: dict[str, Any] = {"requests": days_ago + 1, "amount_nanodollars": from_usd("1")}
        HourlyUsage.objects.create(hour=hour, model="small", outcome="completed", **owner, **sums)
    client = client_of(alice.user)
    for days, step in ((30, 1), (90, 2)):
        shown = text(client.get(url(alice, f"overview?days={days}&measure=requests&group=project")))
        whole = sum(day + 1 for day in range(0, 80, 3) if day < days)
        assert f"Requests {whole:,} " in shown
        assert f"default {whole:,} " in shown or f"{alice.project.name} {whole:,} " in shown
        assert ("By 2 days and project" in shown) == (step == 2)


@pytest.mark.parametrize(("age_days", "is_compared"), [(10, False), (20, True)])
def test_only_an_organization_that_was_there_is_compared(
    alice: Person, age_days: int, is_compared: bool
) -> None:
    Organization.objects.update(created_at=timezone.now() - timedelta(days=age_days))
    owner = {"organization": alice.project.organization, "project": alice.project, "api_key": alice.api_key}
    for days_ago, requests in ((9, 2), (1, 4)):
        hour = (timezone.now() - timedelta(days=days_ago)).replace(minute=0, second=0, microsecond=0)
        HourlyUsage.objects.create(hour=hour, model="small", outcome="completed", requests=requests, **owner)
    shown = text(client_of(alice.user).get(url(alice, "overview")))
    assert ("Compared with" in shown, "+100 %" in shown) == (is_compared, is_compared)


@pytest.mark.parametrize(
    ("page", "mistake"),
    [
        ("overview?days=none", "Days: "),
        ("overview?group=end_user", "End user: "),
        ("requests?start=yesterday", "From: "),
        ("requests?after=x", "is not a cursor"),
        ("audit?before=x", "is not the number of an entry"),
    ],
)
def test_a_wrong_parameter_is_named(alice: Person, page: str, mistake: str) -> None:
    assert mistake in text(as_role(alice, Role.OWNER).get(url(alice, page)), status=400)


def test_filters_are_urls_and_an_id_leads_to_its_receipt(alice: Person, bob: Person) -> None:
    mine, failed = run(alice), run(bob, outcome=Outcome.FAILED)
    client = client_of(alice.user)
    shown = client.get(url(alice, f"requests?key={bob.api_key.pk}&outcome=failed")).content.decode()
    assert failed.id.hex[-8:] in shown
    assert mine.id.hex[-8:] not in shown
    found = client.get(url(alice, f"requests?id={mine}"))
    assert found.headers["location"] == url(alice, f"requests/{mine}")
    assert "$0.00024" in text(client.get(found.headers["location"]))


@pytest.mark.parametrize("page", ["requests", "usage", "overview"])
def test_a_project_has_its_own_name_in_filters(alice: Person, page: str) -> None:
    shown = client_of(alice.user).get(url(alice, page), {"project": alice.project.pk})
    assert "project: default" in [each.text for each in shown.context["chips"]]
    assert "Acme / default" not in text(shown)


def test_the_link_of_an_error_keeps_the_other_filters(alice: Person) -> None:
    run(alice, outcome=Outcome.FAILED, error_code="upstream_error")
    client, query = client_of(alice.user), f"project={alice.project.pk}&days=7&sort=cost"
    shown = client.get(url(alice, f"requests?{query}")).content.decode()
    (link,) = re.findall(r'href="([^"]*)">upstream error<', shown)
    led = client.get(url(alice, "requests") + unescape(link)).context["form"].query
    led.pop("organization")
    assert led == {"project": str(alice.project.pk), "days": "7", "sort": "cost", "error": "upstream_error"}


# ---- people


def test_nobody_gives_a_role_above_their_own_and_an_owner_stays(alice: Person, bob: Person) -> None:
    owner = Member.objects.get(user=alice.user)
    client = as_role(alice, Role.OWNER)
    refused = client.post(url(alice, f"members/{owner.pk}/remove"), follow=True)
    assert "only owner" in text(refused)
    assert refused.redirect_chain[-1][0] == url(alice, "members")
    admin = as_role(bob, Role.ADMIN)
    for page in (f"members/{owner.pk}/role", f"members/{owner.pk}/remove"):
        assert admin.post(url(alice, page), {"role": "viewer"}).status_code == 403
    own = Member.objects.get(user=bob.user)
    assert admin.post(url(alice, f"members/{own.pk}/role"), {"role": "owner"}).status_code == 403
    invited = admin.post(url(alice, "members/invite"), {"name": "dora", "role": "owner", "sees": "all"})
    assert invited.status_code == 200
    assert not User.objects.filter(username="dora").exists()


def test_a_member_on_the_second_page_is_found(
    alice: Person, bob: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_pages, "PAGE", 1)
    User.objects.filter(pk=bob.user.pk).update(email="Robert@acme.example")
    client = client_of(alice.user)

    def found(at: str) -> list[str]:
        page = client.get(at)
        names = [member.user.username for member, *_ in page.context["members"]]
        return names + (found(page.context["next_url"]) if page.context["next_url"] else [])

    assert found(url(alice, "members?q=B")) == ["bob"]
    assert found(url(alice, "members?q=robert%40")) == ["bob"]
    assert found(url(alice, "members")) == ["alice", "bob"]
    for name in (alice.user.username, bob.user.username):
        User.objects.filter(username=name).update(email=f"{name}@acme.example")
    assert found(url(alice, "members?q=acme.example")) == ["alice", "bob"], "the link keeps what is asked for"
    assert "No member matches. Show all ." in text(client.get(url(alice, "members?q=charlie")))
    assert client.get(url(alice, "members?q=%00")).status_code == 400


@pytest.mark.parametrize("others", [1, 2])
def test_who_leaves_an_organization_reads_which_one(bob: Person, others: int) -> None:
    for number in range(others):
        other = Organization.objects.create(name=f"Other {number}")
        Member.objects.create(user=bob.user, organization=other, role=Role.VIEWER)
    own = Member.objects.get(user=bob.user, organization=bob.project.organization)
    left = as_role(bob, Role.ADMIN).post(url(bob, f"members/{own.pk}/remove"), follow=True)
    assert "bob is no longer a member of Acme." in text(left)


def test_the_keys_of_a_removed_person_go_on_and_the_page_says_so(alice: Person, bob: Person) -> None:
    client_of(bob.user)
    member = Member.objects.get(user=bob.user)
    removed = client_of(alice.user).post(url(alice, f"members/{member.pk}/remove"), follow=True)
    assert "API keys that they made or know still work" in text(removed)
    bob.api_key.refresh_from_db()
    assert bob.api_key.revoked_at is None


def test_the_name_of_an_invited_person_is_free_after_their_removal(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    for _ in range(2):
        invited = client.post(
            url(alice, "members/invite"), {"name": "dora", "role": "viewer", "sees": "all"}, follow=True
        )
        assert "Acme" in text(invited)
        member = Member.objects.get(user__username="dora")
        client.post(url(alice, f"members/{member.pk}/remove"))
        assert not User.objects.filter(username="dora").exists()


def test_the_first_page_is_start_until_there_is_a_request(alice: Person) -> None:
    client = client_of(alice.user)
    pages = [client.get("/console/", follow=True).redirect_chain[-1][0]]
    run(alice)
    pages.append(client.get("/console/", follow=True).redirect_chain[-1][0])
    assert pages == [url(alice, "start"), url(alice, "overview")]
