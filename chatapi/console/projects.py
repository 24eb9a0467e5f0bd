"""Creating projects, and limiting what they spend."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from accounts.models import Project
from accounts.pages.admin_mixins import ConstrainedForm
from chatapi.console.tenancy import Console, page, render
from usage.models import BudgetLimit, Period, Scope
from usage.pages.forms import SOFT, USDField

PERIODS = {Period.MONTH: "each month", Period.DAY: "each day", Period.EVER: "in total"}


class ProjectForm(ConstrainedForm):
    """A new project of the organization."""

    class Meta:
        model = Project
        fields = ["name"]
        help_texts = {"name": "Such as website, or staging."}

    def __init__(self, data: Any, console: Console) -> None:
        super().__init__(data, instance=Project(organization=console.organization), initial={"name": ""})


class BudgetForm(ConstrainedForm):
    """A new limit on what a project spends."""

    project = forms.ModelChoiceField(Project.objects.none(), empty_label=None)
    period = forms.ChoiceField(choices=list(PERIODS.items()))
    limit_nanodollars = USDField(label="Limit in USD", widget=forms.TextInput)
    soft_limit_nanodollars = USDField(
        label="Warning in USD", widget=forms.TextInput, required=False, help_text=SOFT
    )

    class Meta:
        model = BudgetLimit
        fields = ["period", "limit_nanodollars", "soft_limit_nanodollars"]

    field_order = ["project", "period", "limit_nanodollars", "soft_limit_nanodollars"]

    def __init__(self, data: Any, console: Console) -> None:
        super().__init__(data, initial={"project": console.project})
        field: Any = self.fields["project"]
        field.queryset = Project.objects.filter(pk__in=[row.pk for row in console.projects])
        field.label_from_instance = lambda row: row.name

    def clean(self) -> dict[str, Any]:
        """Set the owner, which the constraints need."""
        if project := self.cleaned_data.get("project"):
            self.instance.scope, self.instance.scope_id = Scope.PROJECT, project.pk
        return self.cleaned_data


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
        "form": form,
        "submit": "Create the project",
        "back": console.url("start"),
    }
    return render(request, console, "form.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page("usage.add_budgetlimit")
def new_budget(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new budget limit; create it."""
    form = BudgetForm(request.POST or None, console)
    if form.is_valid():
        form.save()
        messages.success(request, "The budget is set. It holds from the next request on.")
        return redirect(console.url("overview", project=form.cleaned_data["project"].pk))
    context = {
        "title": "New budget",
        "form": form,
        "submit": "Set the budget",
        "back": console.url("start"),
        "intro": "A request is refused with the status 402 if the most that it can cost does not fit.",
    }
    return render(request, console, "form.html", context)
