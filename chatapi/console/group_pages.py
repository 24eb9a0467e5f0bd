"""Groups of members: their list, making one, changing its name, people and projects, removing it."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Count, OuterRef, Prefetch, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import groups, memberships
from accounts.models import SHOWN_NAME, Group, GroupMember, GroupProject, Member, Project
from chatapi.console.member_pages import offer
from chatapi.console.tenancy import Console, page, project_name, render


class GroupForm(forms.Form):
    """A group's name, people and projects."""

    name = forms.CharField(max_length=100, validators=Group._meta.get_field("name").validators)
    people = forms.MultipleChoiceField(required=False)
    projects = forms.MultipleChoiceField(required=False)
    opened_with = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any, console: Console, group: Group | None = None) -> None:
        own = list(group.projects.all()) if group is not None else []
        initial: dict[str, Any] = {"name": "", "people": [], "projects": [], "opened_with": ""}
        if group is not None:
            initial = {
                "name": group.name,
                "people": [str(pk) for pk in group.members.values_list("pk", flat=True)],
                "projects": [str(row.pk) for row in own],
                "opened_with": groups.state(group),
            }
        super().__init__(data, initial=initial)
        everyone = Member.objects.filter(organization=console.organization).select_related("user", "own_role")
        self.members = {str(row.pk): row for row in everyone.order_by(SHOWN_NAME)}
        # An archived project of the group stays a choice.
        self.offered = {str(row.pk): row for row in [*console.projects, *own]}
        fields: Any = self.fields
        offer(fields["people"], [(key, _person(row)) for key, row in self.members.items()])
        offer(fields["projects"], [(key, project_name(row)) for key, row in self.offered.items()])

    @property
    def chosen(self) -> tuple[list[Member], list[Project]]:
        """Return the people and the projects of a valid form."""
        sent = self.cleaned_data
        return [self.members[each] for each in sent["people"]], [
            self.offered[each] for each in sent["projects"]
        ]


def _person(row: Member) -> str:
    """Return the name of a choice, which says whether a group gives this person anything."""
    return f"{row.name} ({row.role_name}{'' if row.sees_single_projects else ', sees all projects'})"


@require_safe
@page("accounts.view_member")
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the groups, each with the names of its first people and projects."""
    people = Member.objects.select_related("user").order_by(SHOWN_NAME)
    rows = Group.objects.filter(organization=console.organization).annotate(
        people_counted=_count_of(GroupMember), projects_counted=_count_of(GroupProject)
    )
    found: list[Any] = list(
        rows.prefetch_related(
            Prefetch("members", people[: memberships.MAX_NAMED], to_attr="first_people"),
            Prefetch("projects", Project.objects.all()[: memberships.MAX_NAMED], to_attr="first_projects"),
        )
    )
    context = {
        "title": "Groups",
        "groups": [
            (
                row,
                _names([each.name for each in row.first_people], row.people_counted),
                _names([project_name(each) for each in row.first_projects], row.projects_counted),
            )
            for row in found
        ],
        "may_change": console.may("accounts.change_member"),
    }
    return render(request, console, "groups.html", context)


def _count_of(rows: type[GroupMember | GroupProject]) -> Coalesce:
    """Return an expression: the number of a group's people, or of its projects."""
    own = rows._default_manager.filter(group=OuterRef("pk")).order_by()
    return Coalesce(Subquery(own.values("group").annotate(count=Count("pk")).values("count")), 0)


def _names(first: list[str], count: int) -> str:
    shown = ", ".join(first)
    return f"{shown} and {count - len(first):,} more" if count > len(first) else shown


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_member")
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new group; make it."""
    form = GroupForm(request.POST or None, console)
    if form.is_valid():
        name = form.cleaned_data["name"]
        try:
            groups.create(console.organization.pk, name, *form.chosen)
        except ValidationError as error:
            form.add_error(None, error.messages)
        else:
            messages.success(request, f"The group {name} is made. This holds at once.")
            return redirect(console.url("groups"))
    context = {"title": "New group", "form": form, "submit": "Make the group"}
    return render(request, console, "group.html", context, 400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_member")
def change_page(request: HttpRequest, console: Console, group_id: int) -> HttpResponse:
    """Show a group's name, people and projects; change them."""
    group = _group(console, group_id)
    form = GroupForm(request.POST or None, console, group)
    if form.is_valid():
        sent = form.cleaned_data
        try:
            groups.change(group, sent["name"], *form.chosen, known=sent["opened_with"])
        except ValidationError as error:
            form.add_error(None, error.messages)
        else:
            messages.success(request, f"The group {group.name} is changed. This holds at once.")
            return redirect(console.url("groups"))
    context = {"title": f"Group {form.initial['name']}", "form": form, "submit": "Save", "group": group}
    return render(request, console, "group.html", context, 400 if form.errors else 200)


@require_POST
@page("accounts.change_member")
def remove(request: HttpRequest, console: Console, group_id: int) -> HttpResponse:
    """Remove a group; its people stay members."""
    group = _group(console, group_id)
    try:
        groups.remove(group)
    except ValidationError as error:
        messages.error(request, error.messages[0])
    else:
        messages.success(request, f"The group {group.name} is removed. Its people stay members.")
    return redirect(console.url("groups"))


def _group(console: Console, group_id: int) -> Group:
    row: Group | None = Group.objects.filter(organization=console.organization, pk=group_id).first()
    if row is None:
        raise Http404("There is no such group.")
    return row
