"""Creating projects."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from accounts.models import Project
from accounts.pages.admin_mixins import ConstrainedForm
from chatapi.console.tenancy import Console, Link, page, render


class ProjectForm(ConstrainedForm):
    """A new project of the organization."""

    class Meta:
        model = Project
        fields = ["name"]
        help_texts = {"name": "Such as website, or staging."}

    def __init__(self, data: Any, console: Console) -> None:
        super().__init__(data, instance=Project(organization=console.organization), initial={"name": ""})


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.add_project")
def new_project(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new project; create it."""
    form = ProjectForm(request.POST or None, console)
    if form.is_valid():
        row = form.save()
        messages.success(request, f"The project {row.name} was created.")
        return redirect(
            console.url("new_key" if console.may("accounts.add_apikey") else "start", project=row.pk)
        )
    context = {
        "title": "New project",
        "parent": Link("Start", console.url("start"), True),
        "form": form,
        "submit": "Create the project",
        "back": console.url("start"),
    }
    return render(request, console, "form.html", context)
