"""Settings of the organization and of its projects."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from accounts.models import Organization, Project
from accounts.pages.admin_mixins import ConstrainedForm, OwnChangesForm
from accounts.pages.organization_form import NamedOrganizationForm
from accounts.roles import ADMINISTER_SIGN_IN
from chatapi.console.search import ProjectSearch
from chatapi.console.tenancy import Console, page, render
from chatapi.pages.catalog_forms import ALIASES_EXAMPLE, FALLBACKS_EXAMPLE, ProjectModelsForm
from chatapi.wire.dialects import DIALECTS
from usage.insights.recent_sums import spent
from usage.models import Dimension
from usage.pages.filters import first_mistake

PAGE = 50
_CHANGE_ORGANIZATION = "accounts.change_organization"
_FORBIDDEN = (
    "The organization forbids storing responses for days: this project stores none, whatever is entered here."
)


class OrganizationForm(OwnChangesForm, NamedOrganizationForm):
    """The organization's name, time zone and default dialect, and whether projects may store responses."""

    default_dialect = forms.ChoiceField(
        label="Default dialect",
        required=False,
        choices=[("", "the server's default"), *((name, name) for name in DIALECTS)],
        help_text="The form of the answers to keys without a dialect of their own. The URL's prefix and the "
        "header X-ChatAPI-Dialect override it.",
    )

    class Meta:
        model = Organization
        fields = ["name", "time_zone", "default_dialect", "forbids_stored_responses"]
        help_texts = {"time_zone": "An IANA time zone, such as Europe/Berlin. Budgets and pages follow it."}


class ProjectSettingsForm(OwnChangesForm, ProjectModelsForm, ConstrainedForm):
    """A project's name, its aliases and fallbacks of models, and what it stores of requests."""

    model_aliases = forms.CharField(
        required=False,
        max_length=32_000,
        widget=forms.Textarea({"rows": 4, "placeholder": ALIASES_EXAMPLE, "class": "code"}),
        help_text="Other names for models, for the keys of this project. One line each: “name = model”.",
    )
    model_fallbacks = forms.CharField(
        required=False,
        max_length=32_000,
        widget=forms.Textarea({"rows": 3, "placeholder": FALLBACKS_EXAMPLE, "class": "code"}),
        help_text="Models that answer, in order, if all deployments of another one fail. One line each: "
        "“model = model, model”.",
    )

    class Meta(ProjectModelsForm.Meta):
        fields = [
            "name", "model_aliases", "model_fallbacks", "stores_responses_days", "stores_metadata",
            "counts_end_users", "hashes_end_users",
        ]  # fmt: skip
        labels = {"stores_responses_days": "Keep stored responses for (days)"}
        help_texts = {
            **ProjectModelsForm.Meta.help_texts,
            "stores_responses_days": "Responses that their client asks to store, encrypted. At most 30; 0: "
            "for minutes in memory only.",
        }


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.view_organization")
def settings_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the settings and a page of the projects that match the search; change the settings."""
    may_change = console.may(_CHANGE_ORGANIZATION)
    if request.method == "POST" and not may_change:
        raise PermissionDenied
    # Read again, because the form changes its row, and the frame must not show a refused name.
    row = Organization.objects.get(pk=console.organization.pk) if may_change else console.organization
    form = OrganizationForm(request.POST or None, instance=row) if may_change else None
    if form is not None:
        form.person = console.person
    if form is not None and form.is_valid():
        form.save_changes()
        messages.success(request, "The settings are saved.")
        return redirect(console.url("settings"))
    search, after, projects = ProjectSearch(request.GET), request.GET.get("after", ""), console.projects
    query = search.query if search.is_valid() else {}
    if query:
        active = Project.objects.filter(organization=console.organization, is_active=True)
        projects = list(search.found_in(active))
    start = next((at for at, each in enumerate(projects, 1) if str(each.pk) == after), 0)
    end = start + PAGE
    shown = projects[start:end]
    owners = {each.pk: console.organization.pk for each in shown}
    may_see_spent = console.may("usage.view_hourlyusage")
    spent_by_id = spent(Dimension.PROJECT, owners, timezone.now()) if owners and may_see_spent else {}
    context: dict[str, Any] = {
        "title": "Settings",
        "projects_shown": [(each, spent_by_id.get(each.pk)) for each in shown],
        "may_see_spent": may_see_spent,
        "search": search if query or search.errors or len(console.projects) > PAGE else None,
        "clear_url": f"{console.url('settings')}#projects",
        "mistake": first_mistake(search) if search.errors else "",
        "older_url": console.url("settings", **query, after=projects[end - 1].pk)
        if len(projects) > end
        else "",
        "newest_url": console.url("settings", **query) if after else "",
        "form": form,
        "sign_in_url": console.url("sign_in_settings") if console.may(ADMINISTER_SIGN_IN) else "",
        "certificates_url": console.url("certificates") if console.may("accounts.view_certificate") else "",
        "may_change_projects": console.may("accounts.change_project"),
        "new_project_url": console.url("new_project") if console.may("accounts.add_project") else "",
    }
    status = 400 if search.errors else form.status if form and form.errors else 200
    return render(request, console, "settings.html", context, status)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_project")
def project_page(request: HttpRequest, console: Console, project_id: int) -> HttpResponse:
    """Show the settings of a project; change them."""
    rows = console.rows(Project.objects.filter(pk=project_id))
    row = rows.select_related("organization").first()
    if row is None:
        raise Http404("There is no such project.")
    name = row.name
    form = ProjectSettingsForm(request.POST or None, instance=row)
    if form.is_valid():
        with transaction.atomic():
            form.save_changes()
            form.rename_limited_end_users()
        messages.success(request, f"The settings of {row.name} are saved. They hold within a second.")
        return redirect(console.url("settings"))
    context = {
        "title": f"Settings of {name}",
        "intro": _FORBIDDEN if row.organization.forbids_stored_responses else "",
        "form": form,
        "submit": "Save",
        "back": console.url("settings"),
    }
    return render(request, console, "limit_form.html", context, 400 if form.errors else 200)
