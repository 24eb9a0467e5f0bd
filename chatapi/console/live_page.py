"""Live: the organization's running requests, and stopping one of them, or all of a key or an end user."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from accounts.models import APIKey
from chatapi.console.tenancy import Console, page, render
from chatapi.identity import parse_id
from chatapi.pages import stopping
from usage.insights import RunningGeneration
from usage.models import Generation
from usage.pages.filters import is_id
from usage.pages.live import LiveFilterForm, running_of, table


@require_safe
@page("usage.view_generation", keeps_to_projects=True)
def live_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the running requests that match the URL's filters; a script keeps the table up to date."""
    running = _running(console)
    query, known = request.GET.dict(), {}
    if console.project:
        # The URL may have the project's name; the filter needs its id.
        query["project"] = str(console.project.pk)
        known["project"] = console.project.name
    if is_id(key_id := query.get("key", "")):
        keys = console.rows(APIKey.objects.filter(pk=int(key_id)))
        if (key := keys.first()) is not None:
            known["key"] = str(key)
    form = LiveFilterForm(query, running, known=known)
    context = {
        "title": "Live",
        **table(form),
        # The project of a limit is no filter that could be taken away.
        "is_filtered": form.has_changed()
        if console.limit is None
        else bool({*form.changed_data} - {"project"}),
        "feed": console.feed_url,
        "may_stop": console.may("usage.change_generation"),
    }
    return render(request, console, "live.html", context)


def _running(console: Console) -> list[RunningGeneration]:
    """Return the running requests that the person may see; with a limit, those of the chosen project."""
    if console.limit is None or console.project is None:
        return running_of([console.organization.pk])
    return running_of([], projects=[console.project.pk])


@require_POST
@page("usage.change_generation")
def stop(request: HttpRequest, console: Console, generation_id: str) -> HttpResponse:
    """Ask the workers to stop a request; its client gets an error, and pays for the output until then."""
    own = console.rows(Generation.objects.all())
    found = parse_id(generation_id)
    row = own.filter(pk=found).first() if found else None
    if row is None:
        raise Http404("There is no such request.")
    return stopping.answer(request, row, console.url("live"))


@require_POST
@page("usage.change_generation")
def stop_key(request: HttpRequest, console: Console) -> HttpResponse:
    """Ask the workers to stop all running requests of a key, as many as the page shows."""
    key_id = stopping.stop_key(request, [console.organization.pk])
    return redirect(console.url("live", key=key_id))


@require_POST
@page("usage.change_generation")
def stop_end_user(request: HttpRequest, console: Console) -> HttpResponse:
    """Ask the workers to stop all running requests of an end user, as many as the page shows."""
    filters = stopping.stop_end_user(request, [console.organization.pk])
    return redirect(console.url("live", **filters))
