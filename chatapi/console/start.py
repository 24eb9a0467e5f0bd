"""Start: the steps from an empty organization to its first request, each ticked off once it is done."""

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Exists
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounts.models import APIKey, Member, Organization
from chatapi.console.no_credit import NoCredit
from chatapi.console.offers import first_model
from chatapi.console.tenancy import Console, page, render
from chatapi.snippets import CURL, base_url, written
from usage.models import BudgetLimit, Generation, HourlyUsage
from usage.rollups import refused_requests
from usage.rollups.refused_requests import KeyRefusals

# The age and number of the refused requests that the page shows until a request is accepted.
REFUSED_WITHIN = timedelta(hours=24)
MAX_REFUSALS = 5
# Own roles may lack them: a step is for those who can see what it makes.
_SEEN_WITH = {
    "project": "accounts.view_project",
    "key": "accounts.view_apikey",
    "request": "accounts.view_apikey",
    "budget": "usage.view_budgetlimit",
    "invitation": "accounts.view_member",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the checklist; `url` is the page of its action, empty for people who may not do it."""

    id: str
    title: str
    text: str
    is_done: bool
    action: str = ""
    url: str = ""


@require_safe
@page("accounts.view_organization", keeps_to_projects=True)
def start_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the checklist; a script follows the first request while it streams."""
    no_credit = NoCredit.of(console)
    steps = _steps(console, no_credit)
    done = {step.id: step.is_done for step in steps}
    # Where the step is not shown, the page waits for no request.
    has_request = done.get("request", True)
    model, origin = first_model(console), base_url(request)
    key = "YOUR_TEST_KEY" if no_credit else "YOUR_KEY"
    context = {
        "title": "Start",
        "steps": steps,
        "done_count": sum(done.values()),
        "has_request": has_request,
        "requests_url": console.url("requests")
        if has_request and console.may("usage.view_generation")
        else "",
        "model": model,
        "may_play": console.may("accounts.add_apikey"),
        "curl": written(CURL, origin=origin, key=key, model=model or "MODEL"),
        "key_name": key,
        "no_credit": no_credit,
        "refusals": [] if has_request else _refusals(console),
        "feed": console.feed_url if console.may("usage.view_generation") else "",
    }
    return render(request, console, "start.html", context)


def _steps(console: Console, no_credit: NoCredit | None) -> list[Step]:
    key, generation, settled, limit, colleague = _found(console)
    may = console.may
    project_id = console.projects_for_keys[0].pk if console.projects_for_keys else ""
    new_key_url = console.url("new_key", project=project_id) if may("accounts.add_apikey") else ""
    steps = [
        Step(
            "project",
            "Create a project",
            "Keys, budgets and limits belong to a project: an application, a team, or an environment.",
            bool(console.projects),
            "New project",
            console.url("new_project") if may("accounts.add_project") else "",
        ),
        Step(
            "key",
            "Create an API key",
            "Clients send it with each request. It is shown once.",
            key,
            "New test key" if no_credit else "New API key",
            no_credit.test_key_url if no_credit else new_key_url,
        ),
        Step("request", "Send the first request", "It appears here while it streams.", generation or settled),
        Step(
            "budget",
            "Set a budget",
            "Requests that would exceed it are refused before they cost anything.",
            limit,
            "New budget",
            console.url("new_budget", project=project_id) if may("usage.add_budgetlimit") else "",
        ),
        Step(
            "invitation",
            "Invite a colleague",
            "Roles from viewer to owner say what each person may do.",
            colleague,
            "Invite",
            console.url("invite") if may("accounts.add_member") else "",
        ),
    ]
    seen = [each for each in steps if may(_SEEN_WITH[each.id])]
    # Who sees single projects has them already, and neither sets budgets nor invites.
    return seen if console.limit is None else [each for each in seen if each.id in ("key", "request")]


def _refusals(console: Console) -> list[KeyRefusals]:
    """Return the requests that were refused lately, by key and reason, the most frequent first."""
    if not console.may("usage.view_hourlyusage"):
        return []
    now = timezone.now()
    owners = {"organization_id": console.organization.pk}
    if console.limit is not None and console.project is not None:
        owners["project_id"] = console.project.pk
    return refused_requests.by_key(now - REFUSED_WITHIN, now, MAX_REFUSALS, **owners)


def _found(console: Console) -> tuple[bool, ...]:
    """Return whether there is a key, a request, a settled request, a budget limit, and a second member."""
    organization, models = console.organization, (APIKey, Generation, HourlyUsage, BudgetLimit)
    rows = [console.rows_shown(model._default_manager.all()) for model in models]
    members = Member.objects.filter(organization=organization).order_by("pk")[1:2]
    exist = {f"has_{at}": Exists(each) for at, each in enumerate([*rows, members])}
    found = Organization.objects.filter(pk=organization.pk).values_list(*exist.values()).get()
    return tuple(map(bool, found))


def has_requests(console: Console) -> bool:
    """Return whether a request was sent that the person may see here."""
    return any(console.rows_shown(each._default_manager.all()).exists() for each in (Generation, HourlyUsage))
