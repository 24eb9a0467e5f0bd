"""Live: the organization's running requests, and stopping one of them or all of a key."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from accounts import access
from chatapi.console.tenancy import Console, page, render
from chatapi.identity import parse_id
from chatapi.pages import stopping
from usage import insights
from usage.formatting import count, duration, money
from usage.insights import RunningGeneration
from usage.models import Generation
from usage.pages.filters import is_id
from usage.pages.live import MAX_ROWS, PAGE_ROWS, LiveRow


@require_safe
@page("usage.view_generation")
def live_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the running requests that the URL asks for; a script keeps the table up to date."""
    running = _running(console)
    chosen = {name: request.GET.get(name, "") for name in ("project", "key", "model")}
    shown = [each for each in running if _fits(each, chosen)]
    tokens, cost = sum(each.completion_tokens for each in shown), sum(each.cost_nanodollars for each in shown)
    context: dict[str, Any] = {
        "title": "Live",
        "rows": [(LiveRow.of(each), duration(1_000 * round(each.age_s))) for each in shown[:PAGE_ROWS]],
        "count": len(shown),
        "tokens": count(tokens),
        "cost": money(cost),
        "max_rows": MAX_ROWS,
        "chosen": chosen,
        "filters": _filters(console, running, chosen),
        "feed": console.url("home_of") + "live/feed",
        "is_filtered": any(chosen.values()),
        "may_stop": console.may("usage.change_generation"),
    }
    return render(request, console, "live.html", context)


@require_POST
@page("usage.change_generation")
def stop(request: HttpRequest, console: Console, generation_id: str) -> HttpResponse:
    """Ask the workers to stop a request; its client gets an error, and pays for the output until then."""
    own = access.belonging_to(console.organization.pk, Generation.objects.all())
    found = parse_id(generation_id)
    row = own.filter(pk=found).first() if found else None
    if row is None:
        raise Http404("There is no such request.")
    return stopping.answer(request, row, console.url("live"))


@require_POST
@page("usage.change_generation")
def stop_key(request: HttpRequest, console: Console) -> HttpResponse:
    """Ask the workers to stop all running requests of a key, as many as the page shows."""
    key_id = request.POST.get("key", "")
    running = [each.id for each in _running(console) if str(each.api_key_id) == key_id]
    if not running:
        messages.success(request, "No request of this key is running.")
    elif stopping.ask_to_stop(list(Generation.objects.filter(pk__in=running))):
        messages.success(request, f"Asked to stop {len(running):,} request{'s' * (len(running) > 1)}.")
    else:
        messages.error(request, "The requests could not be stopped: Redis does not respond. Try again.")
    return redirect(console.url("live", key=key_id if is_id(key_id) else ""))


def _running(console: Console) -> list[RunningGeneration]:
    rows = insights.running(MAX_ROWS, [console.organization.pk])
    return sorted(rows, key=lambda each: each.id)


def _fits(each: RunningGeneration, chosen: dict[str, str]) -> bool:
    own = {"project": str(each.project_id), "key": str(each.api_key_id), "model": each.model}
    return all(value in ("", own[name]) for name, value in chosen.items())


def _filters(
    console: Console, running: list[RunningGeneration], chosen: dict[str, str]
) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return each filter's name, title and options: what runs now, and what is chosen."""
    options: dict[str, dict[str, str]] = {
        "project": {str(each.project_id): each.project for each in running},
        "key": {str(each.api_key_id): each.key for each in running},
        "model": {each.model: each.model for each in running},
    }
    for name, value in chosen.items():
        if value:
            options[name].setdefault(value, _title(console, name, value))
    titles = {"project": "Project", "key": "Key", "model": "Model"}
    return [
        (name, titles[name], [("", "any"), *sorted(found.items(), key=lambda option: option[1])])
        for name, found in options.items()
    ]


def _title(console: Console, name: str, value: str) -> str:
    if name == "project" and console.project:
        return console.project.name
    return value[:100] if name == "model" else f"number {value[:20]}"
