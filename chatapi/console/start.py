"""Start: the steps from an empty organization to its first request, each ticked off once it is done."""

from dataclasses import dataclass

from django.db.models import Exists
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from accounts import access
from accounts.models import APIKey, Member, Organization
from chatapi.console.offers import first_model
from chatapi.console.tenancy import Console, page, render
from chatapi.snippets import CURL, base_url, written
from usage.books import credit
from usage.models import BudgetLimit, Generation, HourlyUsage
from usage.payment import configuration


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the checklist; `url` is where it is done, empty for people who may not do it."""

    id: str
    title: str
    text: str
    is_done: bool
    action: str = ""
    url: str = ""


@require_safe
@page("accounts.view_organization")
def start_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the checklist; a script follows the first request while it streams."""
    steps = _steps(console)
    done = {step.id: step.is_done for step in steps}
    model, origin = first_model(console), base_url(request)
    balance = credit.balance(console.organization)
    may_pay = configuration.is_on() and console.may("payment.add_payment")
    context = {
        "title": "Start",
        "steps": steps,
        "done_count": sum(done.values()),
        "has_request": done["request"],
        "model": model,
        "may_play": console.may("accounts.add_apikey"),
        "curl": written(CURL, origin=origin, key="YOUR_KEY", model=model or "MODEL"),
        # Live keys are refused until there is credit.
        "needs_credit": balance.is_required and balance.available_nanodollars <= 0,
        "credit_url": console.url("credit") if may_pay else "",
        "feed": console.url("home_of") + "live/feed",
    }
    return render(request, console, "start.html", context)


def _steps(console: Console) -> list[Step]:
    organization = console.organization
    key, generation, settled, limit, colleague = _found(organization)
    may = console.may
    project_id = console.projects[0].pk if console.projects else ""
    return [
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
            "New API key",
            console.url("new_key", project=project_id) if may("accounts.add_apikey") else "",
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


def _found(organization: Organization) -> tuple[bool, ...]:
    """Return whether there is a key, a request, a settled request, a budget limit, and a second member."""
    models = (APIKey, Generation, HourlyUsage, BudgetLimit)
    rows = [access.belonging_to(organization.pk, model._default_manager.all()) for model in models]
    members = Member.objects.filter(organization=organization).order_by("pk")[1:2]
    exist = {f"has_{at}": Exists(each) for at, each in enumerate([*rows, members])}
    found = Organization.objects.filter(pk=organization.pk).values_list(*exist.values()).get()
    return tuple(map(bool, found))
